# SPDX-License-Identifier: Apache-2.0
"""A value that fits a simple JSON schema, for answers without a model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any


def fitting(schema: Any, rng: Random, words: Sequence[str]) -> Any:
    """Knows types, enums, properties, items and the bounds of texts and numbers; all else is ignored.

    :param rng: decides what the schema leaves open.
    :param words: texts are made of these; at least one.
    """
    if not isinstance(schema, dict):
        return None
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    kinds = schema.get("type", "object" if "properties" in schema else "null")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object":
        return {name: fitting(inner, rng, words) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [fitting(schema.get("items"), rng, words) for _ in range(max(1, schema.get("minItems", 1)))]
    if kind == "string":
        text = " ".join(rng.choices(words, k=8))
        return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    if kind in {"integer", "number"}:
        least = schema.get("minimum", min(0, schema.get("maximum", 0)))
        most = schema.get("maximum", least + 9)
        return rng.randint(int(least), int(most)) if kind == "integer" else rng.uniform(least, most)
    return rng.random() < 0.5 if kind == "boolean" else None
