# SPDX-License-Identifier: Apache-2.0
"""Names of class labels: ``datasets`` stores their numbers, and the names in the schema's metadata.

Only a prompt gets names. The dataset keeps the numbers, as its source has them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_provider_raybatch.contract.prompt_text import ClassLabel

_METADATA = b"huggingface"
_LISTS = frozenset({"Sequence", "List", "LargeList"})
_Mark: TypeAlias = Callable[[Any], Any]


def label_marks(schema: pa.Schema, columns: Collection[str]) -> dict[str, _Mark]:
    """For each of these columns that has class labels, alone or in lists and structs, what names them."""
    note = (schema.metadata or {}).get(_METADATA)
    if note is None or not columns:
        return {}
    return {name: mark for name, mark in _marks(note).items() if name in columns and name in schema.names}


@functools.lru_cache(8)
def _marks(note: bytes) -> dict[str, _Mark]:
    try:
        found = json.loads(note)["info"]["features"]
    except (KeyError, TypeError, ValueError):  # of another software, or without types
        return {}
    marks = {name: _mark(feature) for name, feature in found.items()} if isinstance(found, dict) else {}
    return {name: mark for name, mark in marks.items() if mark is not None}


def _mark(feature: Any) -> _Mark | None:
    """``None`` where there is nothing to name."""
    if isinstance(feature, list):
        return _mark(feature[0]) if feature else None
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        return _naming(feature.get("names"))
    if isinstance(kind, str):
        return _mark(feature.get("feature")) if kind in _LISTS else None
    inner = {name: mark for name, one in feature.items() if (mark := _mark(one)) is not None}
    if not inner:
        return None
    return _in_lists(
        lambda value: (
            {name: inner[name](one) if name in inner else one for name, one in value.items()}
            if isinstance(value, dict)
            else value
        )
    )


def _naming(names: Any) -> _Mark | None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    labels = [ClassLabel.of(number, name) for number, name in enumerate(names)]
    # -1 stands for an unknown class.
    return _in_lists(
        lambda value: labels[value] if isinstance(value, int) and 0 <= value < len(labels) else value
    )


def _in_lists(mark: _Mark) -> _Mark:
    """`mark`, also for each item of lists: a sequence of structs may be stored as a struct of lists."""

    def each(value: Any) -> Any:
        return [each(one) for one in value] if isinstance(value, list) else mark(value)

    return each
