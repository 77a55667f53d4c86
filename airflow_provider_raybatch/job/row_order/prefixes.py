# SPDX-License-Identifier: Apache-2.0
"""Which prompts begin alike, so that the engine answers them from its cache of prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_raybatch.job.row import Request, RowFailure

LONG = 2000
"""Characters of a common prefix that are worth waiting for all rows of an assignment to be rendered."""
_NEAR = 32
"""Rows at most this far apart come into one assignment, or find their prefix in the cache."""
_FEWEST_PAIRS = 3
_LEAST_SHARE = 0.1
"""Of all rows, that find their prefix in a cache once they are together. With fewer, reading all rows first
costs more than it saves."""


def text_of(request: Request | RowFailure) -> str:
    """What a prompt begins with, up to its first part that is not text; an adapter's come after its name.

    The engine keeps the prefixes of each adapter apart.
    """
    if isinstance(request, RowFailure):
        return ""
    if request.each:
        return text_of(request.each[0])
    if request.adapter is not None:
        return f"{request.adapter}\0\0{text_of(replace(request, adapter=None))}"
    if request.prompt is not None:
        return request.prompt
    contents = (message.get("content") for message in request.messages or ())
    texts = (one if isinstance(one, str) else "" for one in contents)
    return "\0".join(itertools.takewhile(bool, texts))


def are_long(texts: Sequence[str]) -> bool:
    """Whether half of these are long."""
    return 2 * sum(len(text) >= LONG for text in texts) > len(texts)


def are_shared(texts: Sequence[str]) -> bool:
    """Whether some begin alike for much longer than all do, as what all share is always cached."""
    ordered = sorted(texts)
    if not ordered:
        return False
    size = _shared_by_all(ordered[0], ordered[-1]) + LONG
    pairs = itertools.pairwise(ordered)
    return any(len(one) >= size and other.startswith(one[:size]) for one, other in pairs)


def scattered_prefix(texts: Sequence[str], rows: int) -> int:
    """How many characters distinguish groups of prompts whose rows lie far from each other.

    :param texts: of the first rows, in the order of the input.
    :param rows: of the input: the more, the more of them share a prefix.
    :returns: 0 where it does not pay to bring such rows together.
    """
    if not are_long(texts):
        return 0
    size = _shared_by_all(min(texts), max(texts)) + LONG
    latest: dict[str, int] = {}
    scattered = 0
    for place, text in enumerate(texts):
        if len(text) >= size:
            prefix = text[:size]
            scattered += place - latest.get(prefix, place) > _NEAR
            latest[prefix] = place
    share = scattered / len(texts) * max(1.0, rows / len(texts))
    return size if scattered >= _FEWEST_PAIRS and share >= _LEAST_SHARE else 0


def _shared_by_all(first: str, last: str) -> int:
    """Characters that all texts begin with, by the first and the last one in alphabetical order."""
    return sum(1 for _ in itertools.takewhile(bool, map(str.__eq__, first, last)))
