# SPDX-License-Identifier: Apache-2.0
"""References to what replicas have read and put into Ray's object store for each other.

A piece stays in the store while rows of it are to be given out, and until each replica that was told to fetch
it has done so or is gone. A reference that is kept longer fills the store, and then a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class SharedContents:
    """References by the number of their piece; an empty list where the replica no longer has the content.

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
