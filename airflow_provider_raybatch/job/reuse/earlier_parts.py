# SPDX-License-Identifier: Apache-2.0
"""Responses in the task's own parts: of the same run, an earlier input or an earlier configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.parts.part import Part, read_columns
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, row_bytes
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.row_keys import NO_ANSWERS, CachedRows, Hits
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder

_COLUMNS = ["output", "paid_by", "origin"]
_Places: TypeAlias = npt.NDArray[np.int64]
_NO_HITS = Hits(*(np.empty(0, np.int64) for _ in range(3)))


@dataclass(frozen=True)
class _Place:
    """Where keys are: in which part and row."""

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("keys", "S16"), ("file", "i4"), ("row", "i4")])

    keys: Keys
    file: _Places
    row: _Places


class LedgerResponses:
    """See :class:`~airflow_provider_raybatch.job.reuse.row_keys.Responses`.

    :param damaged: called once with the path of each damaged part, whose responses are misses.
    :param ranges: of keys; each lookup has those of one. A pass over all parts for each would take too long,
        so the first lookup cuts the keys of the parts likewise.
    """

    def __init__(
        self,
        folder: Folder,
        parts: Sequence[Part],
        damaged: Callable[[str], None],
        ranges: int = 1,
    ) -> None:
        self._folder = folder
        self._parts = list(parts)
        self._ranges = ranges
        self._on_damage, self._damaged = damaged, set[str]()
        self._cut: Partitions[_Place] | None = None

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`; if two parts have one, the later part in the list counts. Opens every part."""
        if not len(keys):
            return _NO_HITS
        if self._cut is None:
            self._cut = self._cut_all()
        found = [_NO_HITS]
        for some in self._cut.pieces(int(key_array.range_of(keys[:1], self._ranges)[0])):
            inside, which = _matching(keys, some.keys)
            found.append(Hits(inside, some.file[which], some.row[which]))
        return _last(found)

    def _cut_all(self) -> Partitions[_Place]:
        """The keys of all parts, in ranges."""
        found = Partitions(_Place, self._ranges)
        for number, (rows, keys) in enumerate(in_order(self._good, self._parts)):
            place = _Place(keys, np.full(len(rows), number), rows)
            found.add(place, key_array.range_of(keys, self._ranges))
        return found

    def read(self, rows: CachedRows, most: int) -> pa.Table | None:
        """See :class:`~airflow_provider_raybatch.job.reuse.row_keys.Responses`."""
        tables = [NO_ANSWERS]
        size = 0
        for number in np.unique(rows.file):
            part, inside = self._parts[int(number)], np.flatnonzero(rows.file == number)
            whole = self._columns(part, _COLUMNS)
            if whole is None:
                continue
            sizes = row_bytes(whole["output"])
            size += int(sizes[rows.row[inside]].sum())
            if size > most and len(rows) > 1:
                return None
            table = whole.take(pa.array(rows.row[inside]))
            payers = pc.fill_null(table["paid_by"], part.submission_id)
            table = table.set_column(table.schema.get_field_index("paid_by"), "paid_by", payers)
            tables.append(table.append_column("hit", pa.array(inside)))
        return pa.concat_tables(tables, promote_options="permissive")

    def _good(self, part: Part) -> tuple[_Places, Keys]:
        """The good rows of a part that have a key, and their keys."""
        table = self._columns(part, ["ok", "key"])
        if table is None:
            return np.empty(0, np.int64), np.empty(0, "S16")
        rows = np.flatnonzero(pc.and_(table["ok"], pc.is_valid(table["key"])).to_numpy())
        return rows, key_array.from_arrow(table["key"].take(pa.array(rows)))

    def _columns(self, part: Part, columns: Sequence[str]) -> pa.Table | None:
        """``None`` if the part is damaged and that counts as a miss."""
        if part.path in self._damaged:
            return None
        try:
            return read_columns(self._folder, part, columns)
        except DamagedPartError:
            self._damaged.add(part.path)
            self._on_damage(part.path)
            return None


def _last(found: Sequence[Hits]) -> Hits:
    """The last hit of each place."""
    place, file, row = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("places", "file", "row")
    )
    _, last = np.unique(place[::-1], return_index=True)
    chosen = len(place) - 1 - last
    return Hits(place[chosen], file[chosen], row[chosen])


def _matching(wanted: Keys, there: Keys) -> tuple[_Places, _Places]:
    """Places in `wanted`, which is sorted, and in `there`, of those keys that are in both."""
    places: _Places = np.asarray(np.searchsorted(wanted, there), np.int64)
    inside = places < len(wanted)
    inside[inside] = wanted[places[inside]] == there[inside]
    return places[inside], np.flatnonzero(inside)
