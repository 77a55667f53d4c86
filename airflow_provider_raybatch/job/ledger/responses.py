# SPDX-License-Identifier: Apache-2.0
"""The responses in the task's own parts: of an earlier input, an earlier question, or an equal row."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.job import key_array
from airflow_provider_raybatch.job.key_array import Keys
from airflow_provider_raybatch.job.ledger.found import Hits
from airflow_provider_raybatch.job.ledger.parts import Part
from airflow_provider_raybatch.job.storage.folder import Folder

_THREADS = 16
_COLUMNS = ["ok", "failure", "output", "paid_by", "origin"]
_NONE: npt.NDArray[np.int64] = np.empty(0, np.int64)


class LedgerResponses:
    """See :class:`~airflow_provider_raybatch.job.ledger.found.Responses`.

    :param failures: whether to find the rows that failed, in place of the good ones.
    """

    def __init__(self, folder: Folder, parts: Sequence[Part], failures: bool = False) -> None:
        self._folder = folder
        self._parts = list(parts)
        self._failures = failures

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`; where two parts have one, the later of the list counts."""
        places, files, rows = [_NONE], [_NONE], [_NONE]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda part: self._look(part, keys), self._parts)
            for number, (inside, row) in enumerate(found):
                places.append(inside)
                rows.append(row)
                files.append(np.full(len(inside), number, np.int64))
        place, file, row = (
            np.concatenate([*arrays, np.empty(0, np.int64)]) for arrays in (places, files, rows)
        )
        _, last = np.unique(place[::-1], return_index=True)
        chosen = len(place) - 1 - last
        return Hits(place[chosen], file[chosen], row[chosen])

    def read(self, hits: Hits) -> pa.Table:
        """The outcomes of `hits`."""
        tables = []
        for number in np.unique(hits.file):
            part, inside = self._parts[int(number)], np.flatnonzero(hits.file == number)
            with self._folder.open(part.path) as stream:
                table = pq.read_table(stream, columns=_COLUMNS).take(pa.array(hits.row[inside]))
            payers = pc.fill_null(table["paid_by"], part.submission_id)
            table = table.set_column(table.schema.get_field_index("paid_by"), "paid_by", payers)
            tables.append(table.append_column("hit", pa.array(inside)))
        return pa.concat_tables(tables, promote_options="permissive")

    def _look(self, part: Part, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        with self._folder.open(part.path) as stream:
            table = pq.read_table(stream, columns=["ok", "key"])
        wanted = pc.and_(pc.is_valid(table["key"]), pc.equal(table["ok"], not self._failures))
        rows = np.flatnonzero(wanted.to_numpy())
        there = key_array.from_arrow(table["key"].take(pa.array(rows)))
        places: npt.NDArray[np.int64] = np.asarray(np.searchsorted(keys, there), np.int64)
        inside = np.append(keys, b"")[places] == there  # the end of `keys` equals nothing
        return places[inside], rows[inside]
