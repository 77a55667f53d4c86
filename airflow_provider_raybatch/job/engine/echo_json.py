# SPDX-License-Identifier: Apache-2.0
"""A value that fits a simple JSON schema, for answers without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from airflow_provider_raybatch.contract.arguments.response_schema import followed

_DEEPEST = 8
"""Levels of nesting, after which a list is empty and anything else null: schemas may refer to themselves."""


def fitting(schema: Any, rng: Random, words: Sequence[str]) -> Any:
    """Knows types, enums, properties, items, references, a union's first option, bounds of texts and numbers.

    All else is ignored.

    :param rng: decides what the schema leaves open.
    :param words: texts are made of these; at least one.
    """
    return _Fitting(schema, rng, words).value(schema, _DEEPEST)


class _Fitting:
    def __init__(self, root: Any, rng: Random, words: Sequence[str]) -> None:
        self._root, self._rng, self._words = root, rng, words

    def value(self, part: Any, depth: int) -> Any:
        schema, _ = followed(part, self._root)
        if not isinstance(schema, dict):
            return None
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        options = schema.get("anyOf") or schema.get("oneOf")
        if options and "type" not in schema and "properties" not in schema:
            return self.value(options[0], depth)
        kinds = schema.get("type", "object" if "properties" in schema else "null")
        kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
        if kind in {"object", "array"}:
            return self._nested(kind, schema, depth - 1)
        return self._scalar(kind, schema)

    def _nested(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        if kind == "array":
            items = max(1, schema.get("minItems", 1)) if depth > 0 else 0
            return [self.value(schema.get("items"), depth) for _ in range(items)]
        if depth < 0:
            return None
        return {name: self.value(inner, depth) for name, inner in schema.get("properties", {}).items()}

    def _scalar(self, kind: Any, schema: dict[str, Any]) -> Any:
        if kind == "string":
            text = " ".join(self._rng.choices(self._words, k=8))
            return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
        if kind in {"integer", "number"}:
            return self._number(schema, kind == "integer")
        return self._rng.random() < 0.5 if kind == "boolean" else None

    def _number(self, schema: dict[str, Any], is_whole: bool) -> float:
        given = {name: value for name, value in schema.items() if not isinstance(value, bool)}  # of draft 4
        highs = [given[name] for name in ("maximum", "exclusiveMaximum") if name in given]
        lows = [given[name] for name in ("minimum", "exclusiveMinimum") if name in given]
        least = max(lows, default=min([0, *(high - 1 for high in highs)]))
        most = min(highs, default=least + 9)
        if not is_whole:
            return self._rng.uniform(least, most)
        first, last = math.ceil(least), math.floor(most)
        first += given.get("exclusiveMinimum") == first
        last -= given.get("exclusiveMaximum") == last
        return self._rng.randint(first, max(first, last))
