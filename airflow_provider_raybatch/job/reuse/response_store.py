# SPDX-License-Identifier: Apache-2.0
"""A job's use of the response store: cached responses come from it, new ones are added to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.data import ReuseArguments
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.failures.diagnosis import said
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, row_bytes
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.row_keys import NO_ANSWERS, CachedRows, Hits
from airflow_provider_raybatch.job.reuse.store.files import AT_ONCE
from airflow_provider_raybatch.job.reuse.store.index import StoreHits
from airflow_provider_raybatch.job.reuse.store.segment import Entries
from airflow_provider_raybatch.job.reuse.store.store import Emit, ResponseStore
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder, folder


def folder_of_store(spec: ReuseArguments, credentials: AwsCredentials | None) -> Folder | None:
    """Where the store of a job lies; ``None`` without `reuse`."""
    return None if spec.reuse is None else folder(spec.reuse, credentials)


def open_store(spec: ReuseArguments, credentials: AwsCredentials | None, emit: Emit) -> ResponseStore | None:
    """The store of a job, checked to be readable and writable; ``None`` without `reuse`."""
    if (place := folder_of_store(spec, credentials)) is None:
        return None
    store = ResponseStore(place, emit, spec.reuse_max_age)
    store.prepare()
    return store


class StoredResponses:
    """A store as :class:`~airflow_provider_raybatch.job.reuse.row_keys.Responses`."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._numbers: dict[str, int] = {}
        """Of the files with a hit."""

    def lookup(self, keys: Keys) -> Hits:
        """See :class:`~airflow_provider_raybatch.job.reuse.row_keys.Responses`."""
        found = self._store.lookup(keys)
        numbers = [self._numbers.setdefault(path, len(self._numbers)) for path in found.entries.files]
        number = np.array(numbers, np.int64)
        return Hits(found.position, number[found.entries.file], found.entries.row)

    def read(self, rows: CachedRows, most: int) -> pa.Table | None:
        """See :class:`~airflow_provider_raybatch.job.reuse.row_keys.Responses`."""
        at = rows.file.astype(np.int64) << 32 | rows.row
        _, first, response_of = np.unique(at, return_index=True, return_inverse=True)
        asked = rows.where(first)
        used, local = np.unique(asked.file, return_inverse=True)
        no_time: npt.NDArray[np.int64] = np.zeros(len(asked), np.int64)
        files = list(self._numbers)
        names = tuple(files[number] for number in used.tolist())
        wanted = Entries(asked.keys, local, asked.row, no_time, no_time, names)
        tables = [NO_ANSWERS]
        size = 0
        for table in self._store.read(StoreHits(np.arange(len(asked)), wanted)):
            place = table["position"].to_numpy()
            hit = np.flatnonzero(np.isin(response_of, place))
            source = np.searchsorted(place, response_of[hit])
            size += int(row_bytes(table["output"])[source].sum())
            if size > most and len(rows) > 1:
                return None
            found = table.select(["output", "paid_by"]).take(pa.array(source))
            tables.append(found.append_column("hit", pa.array(hit)))
        return pa.concat_tables(tables, promote_options="permissive")


def remember(store: ResponseStore, place: Folder, ledger: Sequence[Part], emit: Emit, task: Task) -> None:
    """Store what the drivers of a ledger paid for. It never raises.

    It goes by drivers, since submission ids start again after a head restart. One that is already stored
    costs one request.

    :param ledger: all parts of the task: a response that was carried over a changed input counts as
        generated in the parts of the earlier input alone.
    """
    paid = sorted((part for part in ledger if part.may_be_generated), key=lambda part: part.path)
    try:
        for driver, found in groupby(paid, key=lambda part: part.driver):
            store.add(driver, _generated(place, list(found), task, emit))
    except Exception as error:  # the dataset matters more
        emit(Notice(level="warning", message=not_stored(error, task.spec.shows_rows)))


def not_stored(error: Exception, shows_rows: bool) -> str:
    """A sentence about answers that are not stored."""
    why = said(error, shows_rows)
    why = why if isinstance(error, RaybatchError) else f"reuse: {why}."
    return f"{why} The response store lacks new responses."


def _generated(place: Folder, found: Sequence[Part], task: Task, emit: Emit) -> Iterator[pa.Table]:
    """The good rows of one driver's parts."""

    def paid_rows(part: Part) -> pa.Table | None:
        try:
            table = parts.read_columns(place, part, ["key", "ok", "output"])
        except DamagedPartError:
            text = f"reuse: {place.uri}/{part.path} is damaged; the response store lacks its responses."
            emit(Notice(level="warning", message=text))
            return None
        return table.filter(pc.and_(table["ok"], pc.is_valid(table["key"])))

    for table in in_order(paid_rows, found, AT_ONCE):
        if table is not None and table.num_rows:
            output = task.adapted(table["output"].combine_chunks(), task.stored_type)
            yield pa.table({"key": table["key"], "output": output})
