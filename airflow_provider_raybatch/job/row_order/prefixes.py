# SPDX-License-Identifier: Apache-2.0
"""Which prompts begin alike, so that the engine answers them from its cache of prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from airflow_provider_raybatch.job.row import Request, RowFailure

LONG = 2000
"""Characters from which on a common prefix is worth waiting for all rows of an order to be rendered."""
_NEAR = 32
"""Rows that are at most so far apart are together as they lie: they come into one order, or find their prefix
in the cache."""
_FEWEST_PAIRS = 3
_LEAST_SHARE = 0.1
"""Of all rows, that find their prefix in a cache once they are together. If fewer do, reading all rows first
costs more than it saves."""


def text_of(request: Request | RowFailure) -> str:
    """What a prompt begins with, up to its first part that is not text."""
    if isinstance(request, RowFailure):
        return ""
    if request.prompt is not None:
        return request.prompt
    return "\0".join(itertools.takewhile(bool, map(_content, request.messages or ())))


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def are_long(texts: Sequence[str]) -> bool:
    """Whether half of these are long."""
    return 2 * sum(len(text) >= LONG for text in texts) > len(texts)


def are_shared(texts: Sequence[str]) -> bool:
    """Whether some of these begin alike for much longer than all of them do.

    What all share stays in the cache in any order.
    """
    ordered = sorted(texts)
    if not ordered:
        return False
    size = _shared_by_all(ordered[0], ordered[-1]) + LONG
    pairs = itertools.pairwise(ordered)
    return any(len(one) >= size and other.startswith(one[:size]) for one, other in pairs)


def scattered_prefix(texts: Sequence[str], rows: int) -> int:
    """How many characters tell groups of prompts apart, where rows of a group lie far from each other.

    :param texts: of the first rows, in the order of the input.
    :param rows: of the input. Of more rows, more share a prefix with one that was not looked at.
    :returns: 0 where it does not pay to bring such rows together.
    """
    if not are_long(texts):
        return 0
    size = _shared_by_all(min(texts), max(texts)) + LONG
    latest: dict[str, int] = {}
    apart = 0
    for place, text in enumerate(texts):
        if len(text) >= size:
            prefix = text[:size]
            apart += place - latest.get(prefix, place) > _NEAR
            latest[prefix] = place
    share = apart / len(texts) * max(1.0, rows / len(texts))
    return size if apart >= _FEWEST_PAIRS and share >= _LEAST_SHARE else 0


def _shared_by_all(first: str, last: str) -> int:
    """Characters that all texts begin with, by the first and the last one in alphabetical order."""
    return sum(1 for _ in itertools.takewhile(bool, map(str.__eq__, first, last)))
