# SPDX-License-Identifier: Apache-2.0
"""Which bucket a row comes into, and which rows of it begin first: by prefix, or by length of answer."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order import grouping, lengths
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals

Keys: TypeAlias = npt.NDArray[np.uint32]
"""Of each row. In a bucket, those with lower keys begin earlier."""

_NO_ANSWER = 2**32 - 1
_HIGH = 0xFFFF0000
"""Bits of a key that tell adapters apart."""
_GOLDEN = 2654435769
"""2**32 by the golden ratio: multiples of it are spread evenly (Knuth, The Art of Computer Programming 3)."""


@dataclass(frozen=True)
class ByPrefix:
    """Prompts with one beginning come into one bucket, and lie together in it.

    :param size: characters that decide.
    :cvar notice: for the log.
    :cvar in_order: whether rows begin in the order of buckets; else those of one bucket go to one replica.
    """

    size: int
    buckets: int
    notice: ClassVar[str] = "many prompts begin alike; their rows are brought together first"
    in_order: ClassVar[bool] = False

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """The key of each row: a checksum of its beginning."""
        beginnings = (grouping.text_of(one)[: self.size] for one in requests)
        # A checksum will do: the replica separates prompts that have the same one by chance.
        return np.array([zlib.crc32(text.encode()) for text in beginnings], np.uint32)

    def bucket_of(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.int64]:
        """The bucket of each row, by its key's range.

        :param keys: of rows that a task has read.
        :param ordinals: of the same rows.
        """
        return (keys.astype(np.uint64) * np.uint64(self.buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class ByAdapter(ByPrefix):
    """Rows of one adapter come into few buckets, and lie together in each: an engine holds some at once."""

    notice: ClassVar[str] = "the engine holds fewer adapters than the job has; rows of one come together"

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """The key of each row: a checksum of its adapter's name, and then one of its beginning."""
        found = []
        for one in requests:
            adapter = (one.adapter or "") if isinstance(one, Request) else ""
            beginning = grouping.text_of(one)[: self.size]
            found.append(zlib.crc32(adapter.encode()) & _HIGH | zlib.crc32(beginning.encode()) & ~_HIGH)
        return np.array(found, np.uint32)


@dataclass(frozen=True)
class ByLength:
    """The longest rows are dealt into one bucket a replica; the others follow with the longest first.

    Each dealt bucket gets as many of the longer and shorter ones as any other, like cards of a sorted deck.
    Borders of buckets are those of a sample (sample sort: Frazer and McKellar, Journal of the ACM 17(3),
    1970). Rows of one length are spread evenly over its buckets. docs/internals/scheduling.md has reasons.

    :param sample: sorted keys of some rows.
    :param decks: buckets that are dealt to, one a replica.
    :param dealt: share of the rows (0 to 1) that comes into them.
    :param others: buckets for the other rows.
    """

    sample: tuple[int, ...]
    decks: int
    dealt: float = 1.0
    others: int = 0
    notice: ClassVar[str] = "rows have limits of their own; those with the longest answers come first"
    in_order: ClassVar[bool] = True

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return self.decks + self.others

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """The key of each row: the longer its answer may be, the lower. A failed row takes no time."""
        keys = (lengths.shortness(one) if isinstance(one, Request) else _NO_ANSWER for one in requests)
        return np.fromiter(keys, np.uint32)

    def bucket_of(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.int64]:
        """The bucket of each row, by the share of the sample that takes longer.

        Each task deals to another bucket first, so that no bucket gets all remainders.
        """
        place = self._places(keys, ordinals)
        among_others = (place - self.dealt) / max(1.0 - self.dealt, 1e-9) * self.others
        bucket = self.decks + np.clip(among_others.astype(np.int64), 0, max(0, self.others - 1))
        is_dealt = (place < self.dealt) | (self.others == 0)
        turn = np.argsort(np.argsort(keys[is_dealt], kind="stable"), kind="stable")
        bucket[is_dealt] = (turn + ordinals[:1].sum()) % self.decks
        return bucket

    def _places(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.float64]:
        """Of each row among all, from 0 for the longest to 1."""
        longer = np.searchsorted(self.sample, keys, side="left")
        not_shorter = np.searchsorted(self.sample, keys, side="right")
        within = (ordinals.astype(np.uint64) * np.uint64(_GOLDEN) % np.uint64(2**32)) / 2**32
        places: npt.NDArray[np.float64] = (longer + within * (not_shorter - longer)) / len(self.sample)
        return places


Grouping: TypeAlias = ByPrefix | ByLength


def sample_of(requests: Sequence[Request]) -> tuple[int, ...]:
    """Sorted keys, where each of these rows has a limit, and some have at least twice that of others."""
    keys = tuple(sorted(map(lengths.shortness, requests)))
    return keys if keys and keys[0] and keys[-1] - keys[0] >= lengths.STEPS_AN_OCTAVE else ()


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
