# SPDX-License-Identifier: Apache-2.0
"""What is known of the length of a row's answer before it begins, as a byte."""

from __future__ import annotations

import math
from typing import Any

from airflow_provider_raybatch.job.row import Request

UNKNOWN = 0
_STEPS_AN_OCTAVE = 4
_FIRST_OF_PROMPTS = 128
"""Labels from 1 on are limits, and those from here on are lengths of prompts."""


def label(request: Request) -> int:
    """The class of rows whose answers are about as long as this one's.

    A row's own `max_tokens` says more than the length of its prompt. Both are in steps of 19 %.
    """
    limit = request.sampling.get("max_tokens")
    if isinstance(limit, int) and limit > 0:
        return 1 + _step(limit, _FIRST_OF_PROMPTS - 2)
    return _FIRST_OF_PROMPTS + _step(_characters(request), _FIRST_OF_PROMPTS - 1)


def limits() -> dict[int, float]:
    """Output tokens by label, where the label is a limit."""
    return {label: 2.0 ** ((label - 1) / _STEPS_AN_OCTAVE) for label in range(1, _FIRST_OF_PROMPTS)}


def _step(size: int, most: int) -> int:
    return min(most, round(_STEPS_AN_OCTAVE * math.log2(max(1, size))))


def _characters(request: Request) -> int:
    if request.prompt is not None:
        return len(request.prompt)
    return sum(_length(message.get("content")) for message in request.messages or ())


def _length(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(str(part.get("text", ""))) for part in content if isinstance(part, dict))
    return 0
