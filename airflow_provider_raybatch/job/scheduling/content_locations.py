# SPDX-License-Identifier: Apache-2.0
"""Where the content of a row comes from: each piece is read once, by the replica that gets its first rows."""

from __future__ import annotations

from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, RowIndex


class ContentLocations:
    """Which replica has read which piece, and has it in Ray's object store until all its rows are given.

    A replica that gives rows back puts their piece there again, if it may be gone.
    """

    def __init__(self, pieces: RowIndex) -> None:
        self._pieces = pieces
        self._open: dict[int, int] = {}
        self._reader: dict[int, str] = {}
        self._lender: dict[int, str] = {}
        self._release: dict[str, set[int]] = {}

    def open(self, piece: int, rows: int) -> None:
        """Count rows of a piece that must be given to a replica, for the first time or again."""
        self._open[piece] = self._open.get(piece, 0) + rows

    def is_open(self, piece: int) -> bool:
        """Whether rows of a piece that was opened must still be given."""
        return piece in self._open

    def reopen(self, rows: Ordinals) -> None:
        """Count rows that a replica had and that must be given again."""
        for piece, part in self._pieces.split(rows).items():
            self.open(piece, len(part))

    def lend(self, name: str, rows: Ordinals) -> tuple[int, ...]:
        """A replica gave rows back. Returns their pieces that it puts into the object store."""
        known = self._reader.keys() | self._lender.keys()
        new = tuple(piece for piece in self._pieces.split(rows) if piece not in known)
        self._lender.update(dict.fromkeys(new, name))
        return new

    def give(self, name: str, rows: Ordinals) -> tuple[set[int], set[int]]:
        """Give rows to a replica.

        :returns: their pieces that it takes from the object store, and those that it puts there.
        """
        borrow, put = set[int](), set[int]()
        for piece, part in self._pieces.split(rows).items():
            if piece not in self._reader and piece not in self._lender:
                self._reader[piece] = name
                put.add(piece)
                self._release.get(name, set()).discard(piece)  # it was not told yet, and reads it again
            if self._reader.get(piece) != name:
                borrow.add(piece)
            self._open[piece] -= len(part)
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
