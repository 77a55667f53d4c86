# SPDX-License-Identifier: Apache-2.0
"""Where the content of a row comes from: each piece is read once, by the replica that begins it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, RowIndex


@dataclass
class ContentLocation:
    """Where to take rows from.

    :param read: pieces to be read from storage.
    :param borrow: rows in other replicas' memory, by name.
    :param release: pieces that the replica of that name no longer needs to keep for others.
    """

    read: list[int] = field(default_factory=list)
    borrow: dict[str, Ordinals] = field(default_factory=dict)
    release: list[tuple[str, int]] = field(default_factory=list)


class ContentLocations:
    """Which replica has read which piece. It keeps the piece until all rows of it are given to replicas.

    A replica that gives rows back keeps them until another one gets them, since the piece may be released.
    """

    def __init__(self, pieces: RowIndex) -> None:
        self._pieces = pieces
        self._open: dict[int, int] = {}
        self._reader: dict[int, str] = {}
        self._lender: dict[int, str] = {}
        self.bytes_read = 0

    def open(self, piece: int, rows: int) -> None:
        """Count rows of a piece that must be given to a replica, for the first time or again."""
        self._open[piece] = self._open.get(piece, 0) + rows

    def reopen(self, rows: Ordinals) -> None:
        """Count rows that a replica had and that must be given again."""
        for piece, part in self._pieces.split(rows).items():
            self.open(piece, len(part))

    def lend(self, name: str, rows: Ordinals) -> None:
        """Record that a replica keeps rows that it gave back."""
        self._lender.update(dict.fromkeys(rows.tolist(), name))

    def give(self, name: str, rows: Ordinals) -> ContentLocation:
        """Give rows to a replica, and say where it takes them from."""
        origin = ContentLocation()
        borrowed: dict[str, list[Ordinals]] = {}
        for piece, part in self._pieces.split(rows).items():
            others = self._from_lenders(part, borrowed)
            if len(others):
                reader = self._reader.get(piece)
                if reader is None:
                    self._read(name, piece, origin)
                else:
                    borrowed.setdefault(reader, []).append(others)
            self._close(piece, len(part), origin)
        borrowed.pop(name, None)
        origin.borrow = {other: np.concatenate(parts) for other, parts in borrowed.items()}
        return origin

    def drop(self, name: str) -> None:
        """Forget a lost replica and what it kept."""
        self._reader = {piece: reader for piece, reader in self._reader.items() if reader != name}
        self._lender = {row: lender for row, lender in self._lender.items() if lender != name}

    def _read(self, name: str, piece: int, origin: ContentLocation) -> None:
        origin.read.append(piece)
        self.bytes_read += int(self._pieces.sizes[piece])
        self._reader[piece] = name

    def _from_lenders(self, part: Ordinals, borrowed: dict[str, list[Ordinals]]) -> Ordinals:
        """Borrow the rows that were given back, and return the others."""
        if not self._lender:
            return part
        lent = np.array([row in self._lender for row in part.tolist()])
        for row in part[lent].tolist():
            lender = self._lender.pop(row)
            borrowed.setdefault(lender, []).append(np.array([row], dtype=np.int64))
        return part[~lent]

    def _close(self, piece: int, rows: int, origin: ContentLocation) -> None:
        self._open[piece] -= rows
        if self._open[piece]:
            return
        del self._open[piece]
        reader = self._reader.pop(piece, None)
        if reader is not None:
            origin.release.append((reader, piece))
