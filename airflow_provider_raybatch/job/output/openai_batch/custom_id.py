# SPDX-License-Identifier: Apache-2.0
"""The `custom_id` of a line that can't be read as JSON, as far as it is there."""

from __future__ import annotations

import json
import re

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID

_TEXT = r'"(?:[^"\\]|\\.)*"'
_TEXT_OR_BRACKET = re.compile(rf"{_TEXT}|[{{}}\[\]]")
_TEXT_OF_KEY = re.compile(rf"\s*:\s*({_TEXT})")


def custom_id_in(text: str) -> str | None:
    """The id in a line that is not JSON, as far as it is there; what its body has may be another line's."""
    depth = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
        elif depth == 1 and found[0] == f'"{CUSTOM_ID}"':
            value = _TEXT_OF_KEY.match(text, found.end())
            return None if value is None else _name(value[1])
    return None


def _name(written: str) -> str | None:
    try:
        name = json.loads(written)
        name.encode()  # half of a surrogate pair is not text
    except ValueError:
        return None
    return name if name and "\ufffd" not in name else None  # which stands for bytes that are not text
