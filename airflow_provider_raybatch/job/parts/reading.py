# SPDX-License-Identifier: Apache-2.0
"""The one way to read a part, and what follows from damage.

A part that is cut off, or in which a bit flipped, is never published, and ends one attempt at most: a mark
beside it takes it out of the ledger. Pages and footers have checksums. Nothing is deleted.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import DAMAGED
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry, RangedFile, checked_footer
from airflow_provider_raybatch.storage.folder import Folder

_MOST_KEPT = 128 * 2**20
_READ_WHOLE = 1024 * 1024
"""A part of so many bytes is read by one request; of a larger one, only what is wanted."""
Extent = Literal["all", "columns", "exact"]
"""How much of a part will be read: most of it, some columns of all rows, or a few ranges."""
_DAMAGE = (pa.ArrowInvalid, OSError, ValueError, LookupError)
"""pyarrow raises OSError for broken thrift, pages and compression. Too little memory is not among them."""

T = TypeVar("T")


class DamagedPartError(StorageError):
    """A part is not what was written. The next attempt asks its rows again."""


def read_part(
    folder: Folder, path: str, size: int, read: Callable[[pq.ParquetFile], T], extent: Extent = "exact"
) -> T:
    """What `read` takes from a part.

    :param size: bytes of the file.
    :raises DamagedPartError: it is damaged, and from now on marked so.
    :raises StorageError: the storage gives no answer.
    """
    try:
        return _read(folder, path, size, read, extent)
    except _DAMAGE:
        pass  # a byte may have been wrong on its way only: the second time decides
    try:
        return _read(folder, path, size, read, extent)
    except _DAMAGE as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        why = first.rstrip(".")[:200]
        if isinstance(error, OSError) and error.errno is not None:  # a disk's; pyarrow's have none
            raise StorageError(f"parts: {folder.uri}/{path} can't be read ({why}).") from error
        damaged = f"parts: {folder.uri}/{path} is damaged"
        logging.getLogger(__name__).warning("%s", damaged)  # without `why`, which may quote rows
        folder.write(path + DAMAGED, why.encode())
        then = "its rows count as not finished, and a retry asks them again."
        raise DamagedPartError(f"{damaged} ({why}); {then}", public=f"{damaged}; {then}") from error


def _read(folder: Folder, path: str, size: int, read: Callable[[pq.ParquetFile], T], extent: Extent) -> T:
    stream = folder.open(path, size) if extent == "all" else RangedFile(folder, Entry(path, size, ""))
    with stream:
        if isinstance(stream, RangedFile) and extent == "columns" and size <= _READ_WHOLE:
            stream.load()
        metadata = pq.read_metadata(pa.BufferReader(checked_footer(stream)))
        return read(
            pq.ParquetFile(stream, metadata=metadata, pre_buffer=True, page_checksum_verification=True)
        )


class RecentReads(Generic[T]):
    """What was read of the last used files, at most 128 MiB: neighbouring rows are in the same files.

    One is kept in any case.

    :param size: bytes of what was read.
    """

    def __init__(self, size: Callable[[T], int]) -> None:
        self._size = size
        self._read: OrderedDict[Hashable, T | None] = OrderedDict()
        self._lock = threading.Lock()
        """Not held while a file is read."""

    def get(self, name: Hashable, read: Callable[[], T | None]) -> T | None:
        """What `read` gives for a file, which is called again only if it is kept no more.

        :param read: ``None`` for a file that can't be read, which is kept, too.
        """
        with self._lock:
            if name in self._read:
                self._read.move_to_end(name)
                return self._read[name]
        made = read()
        with self._lock:
            self._read[name] = made
            while len(self._read) > 1 and self._bytes > _MOST_KEPT:
                self._read.popitem(last=False)
        return made

    @property
    def _bytes(self) -> int:
        return sum(self._size(one) for one in self._read.values() if one is not None)


MOST_BYTES = 256 * 1024 * 1024
"""Of the responses in one array, which is in memory several times."""
Sizes: TypeAlias = npt.NDArray[np.int64]


def row_bytes(column: pa.Array | pa.ChunkedArray) -> Sizes:
    """Bytes of each value, without its offset."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(row_bytes, column.chunks)])
    kind = column.type
    if pa.types.is_struct(kind):
        return together(column.flatten(), len(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inside = np.concatenate([[0], np.cumsum(row_bytes(column.flatten()))])
        ends = np.concatenate([[0], np.cumsum(_numbers(pc.list_value_length(column)))])
        sizes: Sizes = np.diff(inside[ends])
        return sizes
    try:
        return _numbers(pc.binary_length(column))
    except pa.ArrowNotImplementedError:  # of one size each, or nearly
        return np.full(len(column), -(-column.nbytes // max(1, len(column))), np.int64)


def together(columns: Iterable[pa.Array | pa.ChunkedArray], rows: int) -> Sizes:
    """Bytes of each row of several columns."""
    sizes: Sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += row_bytes(column)
    return sizes


def portions(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of rows, as first and one past the last: one row, or at most `most` bytes."""
    start, size = 0, 0
    for place, own in enumerate(sizes):
        if place > start and size + own > most:
            yield start, place
            start, size = place, 0
        size += own
    if start < len(sizes):
        yield start, len(sizes)


def cumulated(ordinals: npt.NDArray[np.int64], sizes: Sizes, most: int) -> list[tuple[int, int]]:
    """Where the bytes of rows lie: ascending ordinals, each with the bytes of all rows up to it.

    :param most: at most so many, of about equal bytes each.
    """
    order = np.argsort(ordinals, kind="stable")
    total = np.cumsum(sizes[order])
    wanted = total[-1] * np.arange(1, most + 1) // most
    places = np.unique(np.minimum(np.searchsorted(total, wanted), len(total) - 1))
    return [(int(ordinals[order[place]]), int(total[place])) for place in places]


def _numbers(lengths: pa.Array) -> Sizes:
    found: Sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
