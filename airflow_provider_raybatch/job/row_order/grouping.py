# SPDX-License-Identifier: Apache-2.0
"""In which bucket a row comes, and in which order rows of a bucket begin: by prefix, or by length of answer.

Rows whose prompts begin alike are to lie together. Rows whose answers take longest are to begin first,
wherever they lie in the input: else a long one that comes last keeps one engine busy when all others are done
(longest processing time first: Graham, SIAM Journal on Applied Mathematics 17(2), 1969).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.row_order import lengths, prefixes
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals

Keys: TypeAlias = npt.NDArray[np.uint32]
"""Of each row. In a bucket, those with lower keys begin earlier."""

_NO_ANSWER = 2**32 - 1
_GOLDEN = 2654435769
"""2**32 by the golden ratio: multiples of it are spread evenly (Knuth, The Art of Computer Programming 3)."""


class Grouping(Protocol):
    """How rows come into buckets."""

    @property
    def notice(self) -> str:
        """For the log, why they do."""

    @property
    def in_order(self) -> bool:
        """Whether rows begin in the order of buckets; else those of one bucket go to one replica."""

    @property
    def buckets(self) -> int:
        """How many there are."""

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """The key of each row."""

    def bucket_of(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.int64]:
        """The bucket of each row.

        :param keys: of rows that a task has read.
        :param ordinals: of the same rows.
        """


@dataclass(frozen=True)
class ByPrefix:
    """Prompts with one beginning come into one bucket, and lie together in it.

    :param size: characters that decide.
    """

    size: int
    buckets: int
    notice: ClassVar[str] = "many prompts begin alike; their rows are brought together first"
    in_order: ClassVar[bool] = False

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """A digest of the beginning."""
        beginnings = (prefixes.text_of(one)[: self.size] for one in requests)
        # A checksum will do: the replica separates prompts that have the same one by chance.
        return np.array([zlib.crc32(text.encode()) for text in beginnings], np.uint32)

    def bucket_of(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.int64]:
        """By the key's range."""
        return (keys.astype(np.uint64) * np.uint64(self.buckets) >> np.uint64(32)).astype(np.int64)


@dataclass(frozen=True)
class ByLength:
    """Those rows that replicas take at first are dealt to them; the others come with the longest first.

    The first ones are the longest of all. Each bucket gets as many of the longer and shorter ones as any
    other, like players get cards of a sorted deck, and whoever takes it begins its longest ones first. Who
    came first would otherwise get the longest, and a GPU works longer on few long answers than on many short
    ones of as many tokens. From then on replicas take a few rows at a time, and are kept even by that.

    Borders of buckets are those of a sample (sample sort: Frazer and McKellar, Journal of the ACM 17(3),
    1970). Rows of one length are spread over the buckets that are theirs.

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
        """How many there are."""
        return self.decks + self.others

    def keys(self, requests: Iterable[Request | RowFailure]) -> Keys:
        """The longer its answer may be, the lower. What fails takes no time."""
        found = (lengths.shortness(one) if isinstance(one, Request) else _NO_ANSWER for one in requests)
        return np.fromiter(found, np.uint32)

    def bucket_of(self, keys: Keys, ordinals: Ordinals) -> npt.NDArray[np.int64]:
        """By the share of the sample that takes longer.

        Another task deals to another bucket first, so that none gets what is left over each time.
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


def sample_of(requests: Sequence[Request]) -> tuple[int, ...]:
    """Sorted keys, where each of these rows has a limit, and some have at least twice that of others."""
    keys = tuple(sorted(map(lengths.shortness, requests)))
    return keys if keys and keys[0] and keys[-1] - keys[0] >= lengths.STEPS_AN_OCTAVE else ()
