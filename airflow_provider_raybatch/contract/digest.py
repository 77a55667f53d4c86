# SPDX-License-Identifier: Apache-2.0
"""The digest by which configurations, inputs and runs are told apart in names and fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any


def hex_digest(text: str) -> str:
    """128 bits of the SHA-256 of `text`, as 32 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def json_digest(content: object, default: Callable[[Any], str] | None = None) -> str:
    """:func:`hex_digest` of plain data, whatever the order of its dictionaries; `default` as in `json`."""
    return hex_digest(json.dumps(content, sort_keys=True, ensure_ascii=False, default=default))
