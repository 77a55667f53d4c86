# SPDX-License-Identifier: Apache-2.0
"""Which rows a replica's process had begun when it was killed, for the process that comes after it.

A killed process holds many times as many rows as its engine, and to suspect all of them would make the search
for the row that killed it longer. So it records the rows that it has begun in a file that is mapped into
memory: the file survives a kill, and to write takes no system call. Ray starts the next process on the same
node, where its GPU is; on another node nothing is found, and all rows are suspected.

Other users of the node can predict the file's name, and put a link or a file there. So the file is made anew
or not at all, and read only if it is this user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.scheduling.messages import Begun
from airflow_provider_raybatch.storage.local_files import FILE

_FREE = 0
_ROWS = 1024


class CrashLog:
    """The rows that a process has begun: a row's ordinal and 1, negative while the row is being prepared.

    :param path: see :func:`path_of`; what is there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        self._table: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(path, flags, 0o600), "r+b")
        self._map(_ROWS)

    def prepare(self, ordinals: Iterable[int]) -> None:
        """Rows are about to be read, rendered and tokenised."""
        for ordinal in ordinals:
            self._set(ordinal, -(ordinal + 1))

    def begin(self, ordinal: int) -> None:
        """A row is about to go into the engine."""
        self._set(ordinal, ordinal + 1)

    def end(self, ordinals: Iterable[int]) -> None:
        """Rows are prepared, or answered."""
        for ordinal in ordinals:
            place = self._places.pop(ordinal, None)
            if place is not None:
                self._table[place] = _FREE
                self._free.append(place)

    def now(self) -> Begun:
        """Rows that are begun and not ended."""
        return _begun(self._table)

    def remove(self) -> None:
        """Delete the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what is not written yet, on a full disk
                self._file.close()
            self._file = None

    def _set(self, ordinal: int, value: int) -> None:
        place = self._places.get(ordinal)
        if place is None:
            if not self._free:
                self._map(2 * len(self._table))
            place = self._places[ordinal] = self._free.pop()
        self._table[place] = value

    def _map(self, rows: int) -> None:
        before, self._table = self._table, np.zeros(0, np.int64)
        if self._file is not None:
            try:
                _lengthen(self._file, 8 * (rows - len(before)))
                self._table = np.memmap(self._file, dtype=np.int64, mode="r+", shape=(rows,))
            except OSError:
                # An incomplete file would be worse than none: rows that it lacks would not be suspected.
                self.remove()
        if self._file is None:
            self._table = np.zeros(rows, np.int64)
        self._table[: len(before)] = before
        self._free += range(rows - 1, len(before) - 1, -1)


def path_of(destination: str, actor: str) -> Path:
    """The file of an actor's processes on their node, in a job that writes to `destination`."""
    name = hashlib.sha256(f"{destination}\n{actor}".encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"{FILE}{name}")


def left_by_the_last(path: Path) -> Begun | None:
    """What the actor's last process had begun; ``None`` if none ran on this node. Deletes the file."""
    try:
        # Without O_NONBLOCK, a pipe that is put there would hold this up for ever.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as file:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                return None
            table = np.frombuffer(file.read(), dtype=np.int64)
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError):
        path.unlink()
    return _begun(table)


def _lengthen(file: IO[bytes], size: int) -> None:
    """Here a full disk is an error; a mapped page without a block on the disk would end the process."""
    file.seek(0, os.SEEK_END)
    file.write(bytes(size))
    file.flush()


def _begun(table: npt.NDArray[np.int64]) -> Begun:
    return Begun(in_engine=table[table > 0] - 1, in_preparation=-table[table < 0] - 1)
