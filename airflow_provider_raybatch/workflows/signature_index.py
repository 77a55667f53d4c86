# SPDX-License-Identifier: Apache-2.0
"""Index that finds similar MinHash signatures: locality-sensitive hashing in sorted arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.minhash import PERMUTATIONS, Signatures

_BYTE = 256
_MOST_CANDIDATES = 64
"""Candidates per bucket of a band: a million texts may share a boilerplate beginning."""


class SignatureIndex:
    """Finds an indexed signature whose estimated Jaccard similarity reaches a threshold.

    Locality-sensitive hashing: signatures with an equal band of 4 or 8 bytes are compared. Keys are in sorted
    arrays, which are merged as they grow. A text takes 128 bytes for its signature and 256 or 192 for its
    keys.

    :param threshold: similarity, 0.5 to 1. At least 98 % of the pairs at 0.6 and above are found.
    :raises WorkflowError: `threshold` is out of range.
    """

    def __init__(self, threshold: float) -> None:
        if not 0.5 <= threshold <= 1:
            raise WorkflowError(f"threshold: {threshold} is not between 0.5 and 1; 0.8 is usual.")
        self.threshold = threshold
        wide = 1 - (1 - threshold**8) ** (PERMUTATIONS // 8) >= 0.99
        self._kind: np.dtype[Any] = np.dtype(np.uint64 if wide else np.uint32)
        self._bands = PERMUTATIONS // self._kind.itemsize
        self._blocks: list[Signatures] = []
        self._starts: list[int] = []
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
        buckets: dict[tuple[int, int], list[int]] = {}
        first = self._size
        kept: list[int] = []
        found: list[tuple[int, float] | None] = []
        for number in range(len(rows)):
            band_keys = list(enumerate(keys[number].tolist()))
            near = {one for key in band_keys for one in buckets.get(key, ())}
            match = self._best(rows[number], candidates[number], rows, kept, near, first)
            found.append(match)
            if match is None:
                for key in band_keys:
                    bucket = buckets.setdefault(key, [])
                    if len(bucket) < _MOST_CANDIDATES:
                        bucket.append(len(kept))
                kept.append(number)
        self.add(rows[kept])
        return found

    def add(self, rows: Signatures) -> None:
        """Keep signatures without a search for similar ones."""
        if not len(rows):
            return
        numbers: npt.NDArray[np.uint32] = np.arange(self._size, self._size + len(rows), dtype=np.uint32)
        self._runs.append(_Run.of(self._keys(rows).T, [numbers] * self._bands))
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) > len(self._runs[-2]):
            later = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(later)
        self._blocks.append(rows)
        self._starts.append(self._size)
        self._size += len(rows)

    def _kept(self, number: int) -> Signatures:
        block = bisect_right(self._starts, number) - 1
        return self._blocks[block][number - self._starts[block]]

    def _keys(self, rows: Signatures) -> npt.NDArray[np.unsignedinteger]:
        keys: npt.NDArray[np.unsignedinteger] = np.ascontiguousarray(rows).view(self._kind)
        return keys

    def _best(
        self,
        row: Signatures,
        indexed: set[int],
        rows: Signatures,
        kept: list[int],
        near: set[int],
        first: int,
    ) -> tuple[int, float] | None:
        if not indexed and not near:
            return None
        numbers = [*sorted(indexed), *(first + one for one in sorted(near))]
        others = [
            *(self._kept(one) for one in sorted(indexed)),
            *(rows[kept[one]] for one in sorted(near)),
        ]
        equal = (np.stack(others) == row).mean(axis=1)
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
