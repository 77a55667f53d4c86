# SPDX-License-Identifier: Apache-2.0
"""Responses in the task's own parts: of an earlier input, an earlier configuration, or an equal row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.hits import Hits
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.in_order import in_order

_COLUMNS = ["ok", "failure", "output", "paid_by", "origin"]
_Places: TypeAlias = npt.NDArray[np.int64]
_NONE: _Places = np.empty(0, np.int64)


class LedgerResponses:
    """See :class:`~airflow_provider_raybatch.job.reuse.hits.Responses`.

    :param failures: whether to find failed rows instead of good ones.
    """

    def __init__(self, folder: Folder, parts: Sequence[Part], failures: bool = False) -> None:
        self._folder = folder
        self._parts = list(parts)
        self._failures = failures

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`; if two parts have one, the later part in the list counts. Opens every part."""
        return self._look(range(len(self._parts)), lambda part: self._keys(part, keys))

    def lookup_rows(self, ordinals: npt.NDArray[np.int64], keys: Keys) -> Hits:
        """Find rows with a given key each. Opens only parts whose range of ordinals has one of them.

        :param ordinals: ascending, each once.
        """
        first = np.searchsorted(ordinals, [part.first for part in self._parts], "left")
        stop = np.searchsorted(ordinals, [part.last for part in self._parts], "right")
        near = np.flatnonzero(first < stop)
        return self._look(near.tolist(), lambda part: self._rows(part, ordinals, keys))

    def _look(self, numbers: Sequence[int], look: Callable[[Part], tuple[_Places, _Places]]) -> Hits:
        """What `look` finds in some of the parts: places among what is wanted, and rows of the part."""
        places, files, rows = [_NONE], [_NONE], [_NONE]
        found = in_order(look, [self._parts[number] for number in numbers])
        for number, (inside, row) in zip(numbers, found, strict=True):
            places.append(inside)
            rows.append(row)
            files.append(np.full(len(inside), number, np.int64))
        place, file, row = (np.concatenate(arrays) for arrays in (places, files, rows))
        _, last = np.unique(place[::-1], return_index=True)
        chosen = len(place) - 1 - last
        return Hits(place[chosen], file[chosen], row[chosen])

    def read(self, hits: Hits) -> pa.Table:
        """The outcomes of `hits`."""
        tables = []
        for number in np.unique(hits.file):
            part, inside = self._parts[int(number)], np.flatnonzero(hits.file == number)
            with self._folder.open(part.path, part.bytes) as stream:
                table = pq.read_table(stream, columns=_COLUMNS).take(pa.array(hits.row[inside]))
            payers = pc.fill_null(table["paid_by"], part.submission_id)
            table = table.set_column(table.schema.get_field_index("paid_by"), "paid_by", payers)
            tables.append(table.append_column("hit", pa.array(inside)))
        return pa.concat_tables(tables, promote_options="permissive")

    def _keys(self, part: Part, keys: Keys) -> tuple[_Places, _Places]:
        rows, _, there = self._wanted(part, ["ok", "key"])
        return _matching(keys, there, rows)

    def _rows(self, part: Part, ordinals: npt.NDArray[np.int64], keys: Keys) -> tuple[_Places, _Places]:
        rows, table, there = self._wanted(part, ["ok", "key", "ordinal"])
        places, rows_there = _matching(ordinals, table["ordinal"].to_numpy().astype(np.int64)[rows], rows)
        own = there[np.searchsorted(rows, rows_there)]
        right = own == keys[places]
        return places[right], rows_there[right]

    def _wanted(self, part: Part, columns: list[str]) -> tuple[_Places, pa.Table, Keys]:
        """The rows with the wanted outcome, all rows, and the keys of the former."""
        with self._folder.open(part.path, part.bytes) as stream:
            table = pq.read_table(stream, columns=columns)
        wanted = pc.and_(pc.is_valid(table["key"]), pc.equal(table["ok"], not self._failures))
        rows = np.flatnonzero(wanted.to_numpy())
        return rows, table, key_array.from_arrow(table["key"].take(pa.array(rows)))


def _matching(wanted: npt.NDArray[Any], there: npt.NDArray[Any], rows: _Places) -> tuple[_Places, _Places]:
    """Places in `wanted`, which is sorted, and rows, of those values of `there` that are wanted."""
    places: _Places = np.asarray(np.searchsorted(wanted, there), np.int64)
    inside = places < len(wanted)
    inside[inside] = wanted[places[inside]] == there[inside]
    return places[inside], rows[inside]
