# SPDX-License-Identifier: Apache-2.0
"""Names in a response store, and its Parquet files read in exact ranges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import STORE_DATA, STORE_INDEX
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry, RangedFile, checked_footer, in_order
from airflow_provider_raybatch.storage.folder import Folder

_DATA_FILE = re.compile(rf"{STORE_DATA}/([^/]+)/(\d{{10}})\d{{5,}}\.parquet")
AT_ONCE = 8
"""Files that are read side by side. Of each, a segment or a row group may be in memory."""

Item = TypeVar("Item")
T = TypeVar("T")


class UnusableError(Exception):
    """A file that is damaged, or that this store did not write. The message is a clause about it."""


class FileChangedError(UnusableError):
    """The file was deleted or replaced since it was listed."""


def parquet_file(stream: RangedFile, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a Parquet file; the columns of a row group are one request.

    :param metadata: its footer, if it is known.
    :raises ValueError: its footer is damaged.
    """
    if metadata is None:
        metadata = pq.read_metadata(pa.BufferReader(checked_footer(stream)))
    return pq.ParquetFile(stream, metadata=metadata, pre_buffer=True, page_checksum_verification=True)


def reading(folder: Folder, entry: Entry, read: Callable[[], T]) -> T:
    """The result of `read`, which reads the file `entry`.

    :raises FileChangedError: it was deleted or replaced.
    :raises UnusableError: it can't be read.
    :raises StorageError: the storage gives no answer; only this error is worth a retry.
    """
    try:
        return read()
    except (StorageError, pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        there = folder.head(entry.path)
        if there is None:
            raise FileChangedError(f"{entry.path} is gone") from error
        if isinstance(error, StorageError):
            raise
        if there.version != entry.version:
            raise FileChangedError(f"{entry.path} was replaced while it was read") from error
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UnusableError(f"{entry.path} can't be read ({first.rstrip('.')[:200]})") from error


def usable(function: Callable[[Item], T], items: Iterable[Item], unusable: list[str]) -> Iterator[T]:
    """`function` of each item, in their order, without those for which it raises `UnusableError`.

    :param unusable: gets a clause for each of them.
    """

    def tried(item: Item) -> T | UnusableError:
        try:
            return function(item)
        except UnusableError as error:
            return error

    for found in in_order(tried, items, AT_ONCE):
        if isinstance(found, UnusableError):
            unusable.append(str(found))
        else:
            yield found


def data_file(submission: str, at: int, number: int) -> str:
    """The name of a data file.

    :param at: when the add began, seconds since 1970. So a repeated add uses new names: a compaction may be
        about to delete the files of the first one, or to replace the segment that names them.
    """
    path = f"{STORE_DATA}/{submission}/{at:010d}{number:05d}.parquet"
    paid_by(path)
    return path


def stored_at(path: str) -> float:
    """When the add of a data file began, seconds since 1970; never for a file with another name."""
    found = _DATA_FILE.fullmatch(path)
    return math.inf if found is None else int(found.group(2))


def segment_file(submission: str, at: int, number: int) -> str:
    """The name of a segment of the index; see :func:`data_file`."""
    return f"{STORE_INDEX}/{submission}-{at:010d}-{number:04d}.parquet"


def paid_by(path: str) -> str:
    """The submission whose responses a data file holds.

    :raises ValueError: it is not the name of a data file.
    """
    found = _DATA_FILE.fullmatch(path)
    if found is None:
        raise ValueError(f"{path!r} is not the name of a data file")
    return found.group(1).partition("~")[0]  # several drivers may have had one submission id
