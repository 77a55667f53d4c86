# SPDX-License-Identifier: Apache-2.0
"""Request keys of rows, computed on CPUs before an engine starts, and what a cache finds for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.media.allowed import image_access
from airflow_provider_raybatch.job.media.load import versioned
from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.reuse.partitions import Arrays, Partitions
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.work import Job, ParallelMap, WorkItem

_CHUNKS_PER_TASK = 16
_ROWS_PER_RANGE = 500_000
"""To sort their keys and to look them up takes 0.1 to 0.2 GB (`benchmarks/results/driver_keys.md`)."""


Asked: TypeAlias = tuple[int, Request, bytes | None]
"""An ordinal, what its row is asked, and the key of the row's request before it, if there was one."""


@dataclass(frozen=True)
class RequestKeys(Arrays):
    """The keys of rows, without rows that make no request.

    :param keys: equal sampled requests have equal ones until :meth:`numbered` is called.
    :param greedy: whether the request always gives the same response.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("ordinals", "i8"), ("keys", "S16"), ("greedy", "?")])

    ordinals: npt.NDArray[np.int64]
    keys: Keys
    greedy: npt.NDArray[np.bool_]

    def numbered(self, numbers: npt.NDArray[np.int64]) -> RequestKeys:
        """With a distinct key for each sampled request that repeats an earlier one.

        :param numbers: by place, how many earlier rows make the same request.
        """
        return RequestKeys(self.ordinals, keys.disambiguate(self.keys, numbers), self.greedy)


def ranges_for(rows: int) -> int:
    """Into how many ranges an input is cut, by keys or by ordinals."""
    return min(key_array.MOST_RANGES, max(1, math.ceil(rows / _ROWS_PER_RANGE)))


def keys_of(items: Sequence[WorkItem], job: Job) -> RequestKeys:
    """The keys of the rows of `items` that make a request.

    :raises StorageError: the source, or the storage of images that it refers to, can't be read.
    """
    columns = needed_columns(job.spec)
    reader = Reader(job.listing, columns, job.credentials, whole=False, texts=job.spec.text_columns())
    render = job.task.renderer()
    access = image_access(job.spec, job.listing, job.credentials)

    def asked() -> Iterator[Asked]:
        for item in items:
            positions = item.positions
            chosen = reader.rows(item.chunk, reader.content(item.chunk), positions).rows
            requests = versioned(render_all(render, chosen), access)
            for position, row, request in zip(positions, chosen, requests, strict=True):
                if isinstance(request, Request) and not job.spec.leaves_out(row):
                    yield item.chunk.ordinal + position, request, None

    return keys_by(job.keyer, asked())


def keys_by(keyer: Keyer, asked: Iterable[Asked]) -> RequestKeys:
    """The keys of some requests."""
    found = [
        (ordinal, keyer.in_step(keyer.key(request), request, before), keyer.is_greedy(request))
        for ordinal, request, before in asked
    ]
    ordinals, made, greedy = zip(*found, strict=True) if found else ((), (), ())
    return RequestKeys(np.array(ordinals, np.int64), keys.as_array(made), np.array(greedy, np.bool_))


def request_keys(
    job: Job,
    items: Sequence[WorkItem],
    number: int,
    parallel_map: ParallelMap[RequestKeys],
    make_keys: Callable[[Sequence[WorkItem], Job], RequestKeys] = keys_of,
) -> Partitions[RequestKeys]:
    """Render rows and make their keys.

    :param items: which rows, in input order, cut into chunks of ``ROWS_PER_CHUNK``.
    :param number: of ranges of keys. Ordinals ascend in each.
    :param make_keys: makes those of some items.
    :raises StorageError: the source can't be read, or has changed.
    """
    groups = [items[start : start + _CHUNKS_PER_TASK] for start in range(0, len(items), _CHUNKS_PER_TASK)]
    found = Partitions(RequestKeys, number)
    for made in parallel_map(make_keys, groups, job):
        found.add(made, key_array.range_of(made.keys, number))
    return found


@dataclass(frozen=True)
class Hits:
    """Where keys were found.

    :param places: in the keys that were looked up.
    :param file: numbers of files, as the cache counts them.
    :param row: rows in the files.
    """

    places: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class CachedRows(Arrays):
    """Rows, and where the answer of each is (see :class:`Hits`). Several may have the same key."""

    KIND: ClassVar[np.dtype[Any]] = np.dtype([
        ("ordinals", "i8"),
        ("keys", "S16"),
        ("file", "i4"),
        ("row", "i4"),
    ])

    ordinals: npt.NDArray[np.int64]
    keys: Keys
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


class Responses(Protocol):
    """A cache of responses under their request keys."""

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`, which are sorted and unique."""

    def read(self, rows: CachedRows, most: int) -> pa.Table | None:
        """The answers: ``hit`` (position in `rows`), ``output`` and ``paid_by``.

        A row that is not in the table counts as a miss: its file is gone.

        :param most: bytes. If several rows have more, the result is ``None``.
        """


NO_ANSWERS = pa.Table.from_arrays(
    # Not `pa.array`, which imports pandas: a third of a second in processes that do not need it.
    [pa.nulls(0), pa.nulls(0, pa.string()), pa.nulls(0, pa.int64())],
    ["output", "paid_by", "hit"],
)
"""The columns of :meth:`Responses.read`."""
