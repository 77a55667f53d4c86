# SPDX-License-Identifier: Apache-2.0
"""The frozen listing as the queue sees it: pieces, which rows no replica has, and where content is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ordinals: TypeAlias = npt.NDArray[np.int64]
"""Positions of rows in the whole input."""


def no_rows() -> Ordinals:
    """An empty array of rows."""
    return np.empty(0, dtype=np.int64)


class RowIndex:
    """Units of reading: a Parquet row group, a run of rows of a text file, or a small file.

    Takes one bit per row and 24 bytes per piece.

    :param rows: of each piece, at least 1, in the order in which they lie on disk.
    :param sizes: bytes of each piece, as read from storage.
    :param done: for each row whether it is finished; ``None`` if none is. The array is packed, not kept.
    :param in_order: whether rows are to begin in their order, whichever replica has read others of a piece.
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
        self._first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
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
        return {int(self.of(own[:1])[0]): own for own in np.split(rows[order], borders) if len(own)}


class ContentLocations:
    """Each piece is read by the replica that gets its first rows, and is in the object store for the others.

    A replica that gives rows back puts their piece there again, if it may be gone.
    """

    def __init__(self, pieces: RowIndex) -> None:
        self._pieces = pieces
        self._open: dict[int, int] = {}
        self._reader: dict[int, str] = {}
        self._lender: dict[int, str] = {}
        self._release: dict[str, set[int]] = {}

    def open(self, piece: int, rows: int) -> None:
        """Count rows of a piece that must be given to a replica."""
        self._open[piece] = self._open.get(piece, 0) + rows

    def is_open(self, piece: int) -> bool:
        """Whether rows of an opened piece must still be given."""
        return piece in self._open

    def reopen(self, rows: Ordinals) -> None:
        """Count rows that a replica had and that must be given again."""
        for piece, own in self._pieces.split(rows).items():
            self.open(piece, len(own))

    def lend(self, name: str, rows: Ordinals) -> tuple[int, ...]:
        """A replica gave rows back. Returns their pieces that it puts into the object store."""
        known = self._reader.keys() | self._lender.keys()
        new = tuple(piece for piece in self._pieces.split(rows) if piece not in known)
        self._lender.update(dict.fromkeys(new, name))
        return new

    def give(self, name: str, rows: Ordinals) -> tuple[set[int], set[int]]:
        """Give rows to a replica. Returns their pieces that it borrows, and those that it shares."""
        borrow, put = set[int](), set[int]()
        for piece, own in self._pieces.split(rows).items():
            if piece not in self._reader and piece not in self._lender:
                self._reader[piece] = name
                put.add(piece)
                self._release.get(name, set()).discard(piece)  # it was not told yet, and reads it again
            if self._reader.get(piece) != name:
                borrow.add(piece)
            self._open[piece] -= len(own)
            if not self._open[piece]:
                del self._open[piece]
                self._lender.pop(piece, None)
                if piece in self._reader:
                    self._release.setdefault(self._reader.pop(piece), set()).add(piece)
        return borrow, put & self._open.keys()

    def released(self, name: str) -> tuple[int, ...]:
        """Return pieces that a replica has read and no longer needs, each once."""
        return tuple(sorted(self._release.pop(name, ())))

    def drop(self, name: str) -> None:
        """Forget a lost replica and what it had read."""
        self._reader = {piece: reader for piece, reader in self._reader.items() if reader != name}
        self._lender = {piece: lender for piece, lender in self._lender.items() if lender != name}
        self._release.pop(name, None)


class SharedContents:
    """References to what replicas have put into Ray's object store, by piece; none where it is gone.

    A piece stays there while rows of it are to be given out, and until each replica that was told to fetch it
    has done so or has ended. A reference that is kept longer fills the store, and then a disk.

    :param is_open: whether rows of a piece must still be given out.
    """

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        self._references: dict[int, tuple[str, list[Any]]] = {}
        self._awaited: dict[int, list[str]] = {}
        """The processes that will fetch a piece, each as often as it was told to."""

    def put(self, process: str, contents: Mapping[int, list[Any]]) -> None:
        """Keep a process's references, if they are needed."""
        for piece, references in contents.items():
            if references or piece not in self._references:
                self._references[piece] = process, references
        self._drop(contents)

    def get(self, piece: int) -> list[Any] | None:
        """A reference to a piece's content; ``None`` while none has come."""
        return self._references[piece][1] if piece in self._references else None

    def given(self, process: str, pieces: Iterable[int], borrow: Iterable[int]) -> None:
        """Rows of pieces were given to a process, which will fetch those in `borrow`."""
        for piece in borrow:
            self._awaited.setdefault(piece, []).append(process)
        self._drop(pieces)

    def fetched(self, process: str, pieces: Iterable[int]) -> None:
        """A process has fetched pieces that it was told to fetch, or no longer needs them."""
        for piece in pieces:
            waiting = self._awaited.get(piece, [])
            if process in waiting:
                waiting.remove(process)
            if not waiting:
                self._awaited.pop(piece, None)
        self._drop(pieces)

    def gone(self, process: str) -> None:
        """A process has ended. What it had put into the store went with it."""
        for piece, waiting in list(self._awaited.items()):
            self.fetched(process, [piece] * waiting.count(process))
        for piece, (owner, _) in list(self._references.items()):
            if owner == process and piece not in self._awaited:
                del self._references[piece]

    def _drop(self, pieces: Iterable[int]) -> None:
        for piece in pieces:
            if not self._is_open(piece) and piece not in self._awaited:
                self._references.pop(piece, None)


class PendingRows:
    """Rows that no replica has: of opened pieces, those that came back, and pieces that none has opened."""

    def __init__(self, pieces: RowIndex, locations: ContentLocations) -> None:
        self._pieces = pieces
        self._locations = locations
        self._order = np.flatnonzero(pieces.left > 0)
        self._next = 0
        self._returned: dict[int, Ordinals] = {}
        self._opened: dict[str, Ordinals] = {}
        """By the replica that has opened their piece, where some are left; by no name if order counts."""
        self.count = int(pieces.left.sum())

    def take(self, name: str, count: int) -> Ordinals:
        """Up to `count` rows for a replica, first of pieces that it has opened."""
        if count <= 0 or not self.count:
            return no_rows()
        name = "" if self._pieces.in_order else name
        self._open(name, count)
        taken = [no_rows()]
        while count > 0 and self._opened:
            owner = (
                name if name in self._opened else max(self._opened, key=lambda one: len(self._opened[one]))
            )
            rows = self._opened.pop(owner)
            taken.append(rows[:count])
            if len(rows) > count:
                self._opened[owner] = rows[count:]
            count -= len(taken[-1])
            self.count -= len(taken[-1])
        return np.concatenate(taken)

    def put_back(self, rows: Ordinals) -> None:
        """Rows that a replica had are free again."""
        self._locations.reopen(rows)
        self._return(rows)
        self.count += len(rows)

    def drop(self, name: str) -> None:
        """Forget a replica: the rows of the pieces that it has opened are for all."""
        self._return(self._opened.pop(name, no_rows()))

    def _open(self, name: str, count: int) -> None:
        """Give it rows that came back, and pieces that no replica has opened, until it has `count` rows."""
        opened = [self._opened.get(name, no_rows())]
        have = len(opened[0])
        while self._returned and (have < count or self._pieces.in_order):
            opened.append(self._returned.pop(next(iter(self._returned))))
            have += len(opened[-1])
        while have < count and self._next < len(self._order):
            piece = int(self._order[self._next])
            self._next += 1
            opened.append(self._pieces.rows(piece))
            self._locations.open(piece, len(opened[-1]))
            have += len(opened[-1])
        if len(opened) > 1:
            self._opened[name] = np.sort(np.concatenate(opened))

    def _return(self, rows: Ordinals) -> None:
        for piece, own in self._pieces.split(rows).items():
            self._returned[piece] = np.concatenate([self._returned.get(piece, no_rows()), own])
