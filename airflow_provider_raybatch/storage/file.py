# SPDX-License-Identifier: Apache-2.0
"""One file of a folder: its entry in a listing, checks of its path, exact ranges of content, its checksum.

Parquet has checksums of pages, but none of the footer. A flipped bit there renames a column, or ends the
process: Arrow raises some errors where Python can't catch them.

Paths may come from damaged documents.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

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


Item = TypeVar("Item")
T = TypeVar("T")


def in_order(function: Callable[[Item], T], items: Iterable[Item], at_once: int = 16) -> Iterator[T]:
    """`function` of each item, in their order; `items` is read as far as that needs.

    :param at_once: at most so many items are in work, or done and not yet taken.
    """
    with ThreadPoolExecutor(at_once, thread_name_prefix="raybatch-in-order") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


_SIZE = 16
_MARK = b"RBF1"
"""Begins the checksum of a footer, which other Parquet files lack."""
_TAIL = 8
"""Bytes after the footer: its length, and Parquet's mark."""
_ENDS = (b"PAR1", b"PARE")
"""Parquet's marks. In other files, such as text, what would be the length asks for gigabytes."""
_READ_AT_ONCE = 64 * 1024
"""Bytes of the end that one request reads; most footers have fewer."""


def with_checksum(content: bytes) -> bytes:
    """`content` with a checksum at its end."""
    return content + _digest(content)


def checked(content: bytes) -> bytes:
    """What :func:`with_checksum` was given. :raises ValueError: it has changed."""
    inner = content[:-_SIZE]
    if len(content) < _SIZE or _digest(inner) != content[-_SIZE:]:
        raise ValueError("its checksum does not fit")
    return inner


class DamagedFooterError(OSError, ValueError):
    """A Parquet file with another footer than was written. pyarrow raises OSError for damage, too."""


def with_footer_checksum(parquet: bytes) -> bytes:
    """The same Parquet file with a checksum of its footer before the footer, where readers find a gap."""
    place = len(parquet) - _TAIL - int.from_bytes(parquet[-_TAIL:-4], "little")
    footer = parquet[place:]
    return b"".join((memoryview(parquet)[:place], _MARK, _digest(footer), footer))


def checked_footer(stream: BinaryIO | io.RawIOBase, needed: bool = True) -> bytes:
    """The footer of a Parquet file, which ``pq.read_metadata`` takes.

    :param needed: whether it must have a checksum; files of other software have none.
    :raises DamagedFooterError: it is damaged.
    """
    size = stream.seek(0, io.SEEK_END)
    end = _last(stream, size, _READ_AT_ONCE)
    if end[-4:] not in _ENDS:
        raise DamagedFooterError("it does not end as Parquet does")
    length = int.from_bytes(end[-_TAIL:-4], "little") + _TAIL
    with_check = length + len(_MARK) + _SIZE
    if len(end) < with_check and len(end) < size:
        end = _last(stream, size, with_check)
    if length > len(end):
        raise DamagedFooterError("its footer is cut off")
    footer, check = end[-length:], end[:-length][-len(_MARK) - _SIZE :]
    if (check.startswith(_MARK) or needed) and check != _MARK + _digest(footer):
        raise DamagedFooterError("the checksum of its footer does not fit")
    return footer


def _last(stream: BinaryIO | io.RawIOBase, size: int, length: int) -> bytes:
    stream.seek(max(0, size - length))
    return stream.read() or b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
