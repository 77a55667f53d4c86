# SPDX-License-Identifier: Apache-2.0
"""Which arguments are numbers: Python and pydantic take `True` for 1, where it is a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from airflow_provider_raybatch.contract.base import shown


def refuse_boolean(model: type[BaseModel], field: str, value: Any) -> Any:
    """The value of a field as it was given.

    :raises ValueError: it is a boolean, and the field takes numbers alone.
    """
    if isinstance(value, bool) and field in _numbers(model):
        raise ValueError(f"it must be a number, but it is {shown(value)}")
    return value


@cache
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """Fields that take an ``int`` or a ``float``, and no ``bool``."""
    types = {name: frozenset(_types(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, of in types.items() if of & {int, float} and not of & {bool, Any})


def _types(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, such as those of a union."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        yield from _types(one)
