# SPDX-License-Identifier: Apache-2.0
"""One file of a folder: what a listing says of it, checks of its path, and its content in exact ranges.

Paths may come from damaged documents.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import StorageError

REQUEST_BYTES = 8 * 1024 * 1024
"""Of one read of a buffer: enough to hide the latency of S3."""


@dataclass(frozen=True)
class Entry:
    """One file of a listing.

    :param path: relative to the folder.
    :param version: changes when the content does.
    :param modified: epoch seconds of the last write, by the storage's clock.
    """

    path: str
    size: int
    version: str
    modified: float = field(default=0.0, compare=False)


def several(paths: Iterable[str]) -> list[str]:
    """Return the paths.

    :raises TypeError: it is one text, whose characters would each be taken for a path.
    :raises ValueError: one is empty, which is the folder itself.
    """
    if isinstance(paths, str):
        raise TypeError(f"{paths!r} is one path; give a list of paths.")
    wanted = list(paths)
    if "" in wanted:
        raise ValueError("An empty path names the folder itself, which is never deleted.")
    return wanted


def inside(root: str, path: str) -> Path:
    """The file or folder `path` below `root`; `root` itself if it is empty.

    :raises StorageError: it leads out of there.
    """
    if path.startswith("/") or ".." in path.split("/"):
        text = f"{path!r} leads out of {root}; use a path inside of it."
        raise StorageError(text, FailureClass.USER_ERROR)
    return Path(root, path) if path else Path(root)


class Ranges(Protocol):
    """The part of a folder that is used here."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :class:`~airflow_provider_raybatch.storage.folder.Folder`."""


class RangedFile(io.RawIOBase):
    """A file of a folder that is read by one request a range and never further than asked.

    A store's own file object reads ahead by megabytes after each seek, and Parquet seeks to every column. To
    read a file to its end, put an ``io.BufferedReader`` of `REQUEST_BYTES` around it. A failed read can be
    repeated: the only state is the position.

    :param whole: whether the first read takes the whole file into memory.
    """

    def __init__(self, folder: Ranges, entry: Entry, whole: bool = False) -> None:
        self._folder = folder
        self._entry = entry
        self._at = 0
        self._whole = whole
        self._content: bytes | None = None

    def load(self) -> None:
        """Take the whole file into memory by one request."""
        self._content = self._folder.read_range(self._entry.path, 0, self._entry.size)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go somewhere."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.size}[whence]
        if place < 0:
            raise ValueError(f"seek: {place} is before the beginning")
        self._at = place
        return place

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        left = max(0, self._entry.size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if self._whole and self._content is None and length:
            self.load()
        if self._content is not None:
            content = self._content[self._at : self._at + length]
        else:
            content = self._folder.read_range(self._entry.path, self._at, length) if length else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as the file and one request reach."""
        content = self.read(min(len(buffer), REQUEST_BYTES))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        """The rest; Python itself asks for 8 KiB at a time."""
        return b"".join(iter(lambda: self.read(REQUEST_BYTES), b""))
