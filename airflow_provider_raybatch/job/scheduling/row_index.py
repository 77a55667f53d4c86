# SPDX-License-Identifier: Apache-2.0
"""The frozen listing as the queue sees it: pieces that are read whole, and their unfinished rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ordinals: TypeAlias = npt.NDArray[np.int64]
"""Positions of rows in the whole input."""


class RowIndex:
    """Units of reading: a Parquet row group, a run of rows of a text file, or a small file.

    Takes one bit per row and 24 bytes per piece.

    :param rows: of each piece, at least 1, in the order in which they lie on disk.
    :param sizes: bytes of each piece, as read from storage.
    :param done: for each row whether it is finished; ``None`` if none is. The array is packed, not kept.
    :param in_order: whether rows are to begin in their order, whichever replica has read others of a piece.
    :raises ValueError: the lengths of the arguments don't match, or a piece is empty.
    """

    def __init__(
        self,
        rows: Sequence[int] | npt.NDArray[np.int64],
        sizes: Sequence[int] | npt.NDArray[np.int64],
        done: npt.NDArray[np.bool_] | None = None,
        in_order: bool = False,
    ) -> None:
        self.in_order = in_order
        counts = np.asarray(rows, dtype=np.int64)
        self.sizes = np.asarray(sizes, dtype=np.int64)
        if len(self.sizes) != len(counts):
            raise ValueError(f"sizes: give one a piece; {len(self.sizes)} came, for {len(counts)}.")
        if len(counts) and counts.min() < 1:
            raise ValueError("rows: a piece has no rows; leave it out.")
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        total = int(self._first[-1])
        if done is not None and len(done) != total:
            raise ValueError(f"done: give one a row; {len(done)} came, for {total}.")
        self._todo = None if done is None else np.packbits(~done)
        self.left: Ordinals = counts
        """Number of unfinished rows of each piece."""
        if done is not None and len(counts):
            self.left = counts - np.add.reduceat(done, self._first[:-1], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes of the pieces with unfinished rows: what one pass over them reads."""
        return int(self.sizes[self.left > 0].sum())

    def rows(self, piece: int) -> Ordinals:
        """The unfinished rows of a piece."""
        first, stop = int(self._first[piece]), int(self._first[piece + 1])
        if self._todo is None:
            return np.arange(first, stop, dtype=np.int64)
        bits = np.unpackbits(self._todo[first // 8 : (stop + 7) // 8])[first % 8 :][: stop - first]
        return np.flatnonzero(bits) + first

    def of(self, rows: Ordinals) -> npt.NDArray[np.int64]:
        """The piece in which each of `rows` lies."""
        return np.searchsorted(self._first, rows, side="right") - 1

    def split(self, rows: Ordinals) -> dict[int, Ordinals]:
        """`rows` by piece, in their order."""
        found = self.of(rows)
        if len(found) and found[0] == found[-1] and (found == found[0]).all():
            return {int(found[0]): rows}
        order = np.argsort(found, kind="stable")
        borders = np.flatnonzero(np.diff(found[order])) + 1
        return {int(self.of(part[:1])[0]): part for part in np.split(rows[order], borders) if len(part)}
