# SPDX-License-Identifier: Apache-2.0
"""What of a chat decides whether a chat template takes it: all but its words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_raybatch.contract.digest import hex_digest
from airflow_provider_raybatch.job.row import Request

_WORDS = {"role", "type"}
"""Keys of a message, or of a part of one, whose values templates compare."""
_OPAQUE = {"arguments"}
"""Of a call of a tool: an object whose keys are the tool's own."""


def shapes(requests: Iterable[Request]) -> frozenset[str]:
    """The shapes of requests, 32 hex digits each: roles in their order, kinds of content, calls of tools."""
    found = {json.dumps(_shape(one.messages or one.prompt or ""), sort_keys=True) for one in requests}
    return frozenset(map(hex_digest, found))


def _shape(value: Any) -> Any:
    if isinstance(value, str):
        return "text" if value else ""
    if isinstance(value, Mapping):
        return {str(key): _of_key(str(key), inner) for key, inner in value.items()}
    return list(map(_shape, value)) if isinstance(value, (list, tuple)) else type(value).__name__


def _of_key(key: str, value: Any) -> Any:
    if key in _WORDS and isinstance(value, str):
        return [value]
    return type(value).__name__ if key in _OPAQUE else _shape(value)
