# SPDX-License-Identifier: Apache-2.0
"""Find the new lines of a log: Ray gives no offsets, so consecutive tails are overlapped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

_LEAST_OVERLAP = 4


def digest(line: str) -> str:
    """A short digest of a line, kept instead of the line."""
    return hashlib.blake2b(line.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def first_new(seen: Sequence[str], tail: Sequence[str], limit: int) -> int | None:
    """Index of the first line in `tail` that earlier polls didn't show; ``None`` if lines were missed.

    :param seen: digests of the last lines that earlier polls showed, oldest first; of the whole log if it has
        fewer than `limit` lines.
    :param tail: digests of the lines that this poll shows.
    """
    if not seen or not tail:
        return 0
    return next(_starts(seen, tail, limit), None)


def tells_growth(seen: Sequence[str], tail: Sequence[str], limit: int) -> bool:
    """Whether it is certain which lines of a short tail are new.

    A few lines may be equal by chance, so the two must overlap in one way only, and by several lines.
    """
    starts = list(_starts(seen, tail, limit)) if seen else []
    return len(starts) == 1 and starts[0] >= min(_LEAST_OVERLAP, len(seen))


def _starts(seen: Sequence[str], tail: Sequence[str], limit: int) -> Iterator[int]:
    # Logs only grow: if the whole log was seen, at least as many lines are new as it has grown by.
    least = max(0, len(tail) - len(seen)) if len(seen) < limit else 0
    for new in range(least, len(tail)):
        start = len(tail) - new
        if seen[-1] != tail[start - 1]:
            continue
        overlap = min(len(seen), start)
        if list(seen[-overlap:]) == list(tail[start - overlap : start]):
            yield start
