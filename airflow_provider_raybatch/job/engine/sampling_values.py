# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a row in vLLM's types.

JSON and table columns write some values in another way: token ids as text; a struct has the fields of all
rows, with nulls; a map is a list of pairs; pandas has floats where a column of whole numbers lacks some.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.base import shown

_OBJECTS = frozenset({"structured_outputs", "repetition_detection"})
_WHOLE = re.compile(r"\bint\b(?!.*\bfloat\b)")
"""Types whose numbers are whole, as Python writes them."""


def tidied(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters, in vLLM's types where the value leaves no doubt.

    :param types: of vLLM's parameters, by name.
    :raises ValueError: a key of `logit_bias` is not a token id.
    """
    made = {}
    for name, value in values.items():
        if name == "logit_bias":
            value = _by_token(value)
        elif name in _OBJECTS and isinstance(value, Mapping) and value:
            value = {key: inner for key, inner in value.items() if inner is not None} or None
        elif isinstance(value, list):
            value = [inner for inner in value if inner is not None]
        if _WHOLE.search(str(types.get(name))):
            value = list(map(whole_number, value)) if isinstance(value, list) else whole_number(value)
        if value is not None or name == "max_tokens":  # which has no limit then
            made[name] = value
    return made


def whole_number(value: Any) -> Any:
    """An int for a float without a fraction; any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _token(value: Any) -> int:
    if isinstance(value, bool) or (int(value) != value and not isinstance(value, str)):
        raise ValueError
    return int(value)


def _by_token(biases: Any) -> Any:
    if biases is None:
        return None
    try:
        return {_token(token): bias for token, bias in dict(biases).items() if bias is not None}
    except (TypeError, ValueError):
        raise ValueError(f"logit_bias: {shown(biases)} has a key that is not a token id; give ids") from None
