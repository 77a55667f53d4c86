# SPDX-License-Identifier: Apache-2.0
"""Which prompts begin alike, so that the engine answers them from its cache of prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from airflow_provider_raybatch.job.row import Request

LONG = 2000
"""Characters from which on a common prefix is worth waiting for all rows of an order to be rendered."""


def text_of(request: Request) -> str:
    """What a prompt begins with, up to its first part that is not text."""
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
    first, last = ordered[0], ordered[-1]
    by_all = sum(1 for _ in itertools.takewhile(bool, map(str.__eq__, first, last)))
    size = by_all + LONG
    pairs = itertools.pairwise(ordered)
    return any(len(one) >= size and other.startswith(one[:size]) for one, other in pairs)
