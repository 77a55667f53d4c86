# SPDX-License-Identifier: Apache-2.0
"""MinHash signatures of texts, one byte per permutation, and an index that finds similar ones.

The index is locality-sensitive hashing in sorted arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from airflow_provider_raybatch.dataset.errors import UsageError

PERMUTATIONS = 128
_SEED = 42
ALGORITHM = f"rensa-rminhash-{RMinHash.ALGORITHM_VERSION}-{PERMUTATIONS}-{_SEED}"
"""Signatures of two algorithms can't be compared."""

Signatures: TypeAlias = npt.NDArray[np.uint8]

_BYTE = 256
_GROUP_CHARACTERS = 1_000_000
_MOST_CANDIDATES = 64
"""Candidates per bucket of a band: a million texts may share a boilerplate beginning."""


@dataclass(frozen=True)
class Shingles:
    """The units of comparison: overlapping runs of words, or of characters for short texts.

    :param kind: ``word`` or ``char``.
    :param size: length of a run. One changed word changes three runs of three words, so for texts of fewer
        than about 30 words ``char`` with 5 is better.
    """

    kind: Literal["word", "char"] = "word"
    size: int = 3

    def __post_init__(self) -> None:
        if self.kind not in {"word", "char"} or self.size < 1:
            raise UsageError(
                f"shingles: kind {self.kind!r} and size {self.size} are not usable; take 'word' or 'char', "
                "and a size of at least 1."
            )

    def of(self, text: str) -> list[str]:
        """The distinct runs of a text; case and the kind of white space are ignored."""
        words = text.casefold().split()
        if self.kind == "word":
            starts = range(max(1, len(words) - self.size + 1))
            return list({" ".join(words[start : start + self.size]) for start in starts})
        joined = " ".join(words)
        return list({
            joined[start : start + self.size] for start in range(max(1, len(joined) - self.size + 1))
        })


def signatures(texts: Sequence[str], shingles: Shingles) -> Signatures:
    """A row of 128 bytes for each text: the lowest byte of each hash, which is enough for an estimate."""
    rows: Signatures = np.empty((len(texts), PERMUTATIONS), np.uint8)
    for start, stop in _groups(texts):
        matrix = RMinHash.digest_matrix_from_token_sets(
            [shingles.of(text) for text in texts[start:stop]], num_perm=PERMUTATIONS, seed=_SEED
        )
        rows[start:stop] = np.array(matrix.to_rows(), dtype=np.uint32) % _BYTE
    return rows


def _groups(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Split the texts into small groups, since shingles take about a hundred times the memory of a text."""
    start = characters = 0
    for number, text in enumerate(texts):
        if number > start and characters + len(text) > _GROUP_CHARACTERS:
            yield start, number
            start, characters = number, 0
        characters += len(text)
    if texts:
        yield start, len(texts)


class SignatureIndex:
    """Finds an indexed signature whose estimated Jaccard similarity reaches a threshold.

    Locality-sensitive hashing: signatures with an equal band of 4 or 8 bytes are compared. Keys are in sorted
    arrays, which are merged as they grow. A text takes 128 bytes for its signature and 256 or 192 for its
    keys.

    :param threshold: similarity, 0.5 to 1. At least 98 % of the pairs at 0.6 and above are found.
    :raises UsageError: `threshold` is out of range.
    """

    def __init__(self, threshold: float) -> None:
        if not 0.5 <= threshold <= 1:
            raise UsageError(f"threshold: {threshold} is not between 0.5 and 1; 0.8 is usual.")
        self.threshold = threshold
        wide = 1 - (1 - threshold**8) ** (PERMUTATIONS // 8) >= 0.99
        self._kind: np.dtype[Any] = np.dtype(np.uint64 if wide else np.uint32)
        self._bands = PERMUTATIONS // self._kind.itemsize
        self._rows: Signatures = np.empty((0, PERMUTATIONS), np.uint8)
        self._size = 0
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return self._size

    def keep_new(self, rows: Signatures) -> list[tuple[int, float] | None]:
        """For each signature the most similar one kept so far; if ``None``, the signature itself is kept.

        :returns: number of the kept signature, from 0 in the order in which they were kept, and similarity.
        """
        keys = self._keys(rows)
        candidates: list[set[int]] = [set() for _ in range(len(keys))]
        for run in self._runs:
            run.collect(keys, candidates)
        self._make_room(len(rows))
        buckets: dict[tuple[int, int], list[int]] = {}
        kept: list[int] = []
        found: list[tuple[int, float] | None] = []
        for number, row in enumerate(rows):
            band_keys = list(enumerate(keys[number].tolist()))
            match = self._best(row, candidates[number].union(*(buckets.get(key, ()) for key in band_keys)))
            found.append(match)
            if match is None:
                own = self._size + len(kept)
                self._rows[own] = row
                for key in band_keys:
                    bucket = buckets.setdefault(key, [])
                    if len(bucket) < _MOST_CANDIDATES:
                        bucket.append(own)
                kept.append(number)
        self.add(rows[kept])
        return found

    def add(self, rows: Signatures) -> None:
        """Keep signatures without a search for similar ones."""
        if not len(rows):
            return
        self._make_room(len(rows))
        numbers: npt.NDArray[np.uint32] = np.arange(self._size, self._size + len(rows), dtype=np.uint32)
        self._rows[numbers] = rows
        self._size += len(rows)
        self._runs.append(_Run.of(self._keys(rows).T, [numbers] * self._bands))
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) > len(self._runs[-2]):
            later = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(later)

    def _make_room(self, more: int) -> None:
        missing = self._size + more - len(self._rows)
        if missing > 0:
            room: Signatures = np.empty((max(missing, len(self._rows) // 2), PERMUTATIONS), np.uint8)
            self._rows = np.concatenate((self._rows, room))

    def _keys(self, rows: Signatures) -> npt.NDArray[np.unsignedinteger]:
        keys: npt.NDArray[np.unsignedinteger] = np.ascontiguousarray(rows).view(self._kind)
        return keys

    def _best(self, row: Signatures, near: set[int]) -> tuple[int, float] | None:
        if not near:
            return None
        numbers = sorted(near)
        equal = (self._rows[numbers] == row).mean(axis=1)
        similarity = np.clip((equal - 1 / _BYTE) / (1 - 1 / _BYTE), 0, 1)
        best = int(similarity.argmax())
        return (numbers[best], float(similarity[best])) if similarity[best] >= self.threshold else None


@dataclass(frozen=True)
class _Run:
    """Keys of each band, sorted, with the numbers of their signatures."""

    keys: list[npt.NDArray[np.unsignedinteger]]
    numbers: list[npt.NDArray[np.uint32]]

    @classmethod
    def of(
        cls,
        keys: Iterable[npt.NDArray[np.unsignedinteger]],
        numbers: Iterable[npt.NDArray[np.uint32]],
    ) -> _Run:
        """Sort the keys of each band."""
        found = cls([], [])
        for of_band, their_numbers in zip(keys, numbers, strict=True):
            order = np.argsort(of_band, kind="stable")
            found.keys.append(of_band[order])
            found.numbers.append(their_numbers[order])
        return found

    def __len__(self) -> int:
        return len(self.numbers[0])

    def merged(self, later: _Run) -> _Run:
        return _Run.of(
            map(np.concatenate, zip(self.keys, later.keys, strict=True)),
            map(np.concatenate, zip(self.numbers, later.numbers, strict=True)),
        )

    def collect(self, wanted: npt.NDArray[np.unsignedinteger], candidates: list[set[int]]) -> None:
        for band, (keys, numbers) in enumerate(zip(self.keys, self.numbers, strict=True)):
            starts: npt.NDArray[np.intp] = np.searchsorted(keys, wanted[:, band], "left")
            stops: npt.NDArray[np.intp] = np.searchsorted(keys, wanted[:, band], "right")
            for row in np.flatnonzero(stops > starts).tolist():
                stop = min(int(stops[row]), int(starts[row]) + _MOST_CANDIDATES)
                candidates[row].update(numbers[starts[row] : stop].tolist())
