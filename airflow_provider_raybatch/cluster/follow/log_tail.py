# SPDX-License-Identifier: Apache-2.0
"""Which lines of a log's tail are new: Ray tells no offsets, so two looks are laid over each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

_LEAST_OVERLAP = 4


def digest(line: str) -> str:
    """A short stand-in of a line, to remember it by."""
    return hashlib.blake2b(line.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def first_new(seen: Sequence[str], tail: Sequence[str], limit: int) -> int | None:
    """Index of the first line in `tail` that an earlier look didn't show.

    :param seen: what the earlier look ended with, oldest first; the whole log if it has fewer than `limit`
        lines.
    :param tail: the present look.
    :param limit: most lines that a look shows.
    :return: ``None`` when the two don't meet: more lines came in between than a look shows.
    """
    if not seen or not tail:
        return 0
    return next(_starts(seen, tail, limit), None)


def tells_growth(seen: Sequence[str], tail: Sequence[str], limit: int) -> bool:
    """Whether a look that shows the end of a log alone leaves no doubt about what is new in it.

    Few lines may look alike: they count only if they overlap in one way, and by more than a line or two.
    """
    starts = list(_starts(seen, tail, limit)) if seen else []
    return len(starts) == 1 and starts[0] >= min(_LEAST_OVERLAP, len(seen))


def _starts(seen: Sequence[str], tail: Sequence[str], limit: int) -> Iterator[int]:
    # Lines are only ever added: where the whole log was seen, at least the growth is new.
    least = max(0, len(tail) - len(seen)) if len(seen) < limit else 0
    for new in range(least, len(tail)):
        start = len(tail) - new
        if seen[-1] != tail[start - 1]:
            continue
        overlap = min(len(seen), start)
        if list(seen[-overlap:]) == list(tail[start - overlap : start]):
            yield start
