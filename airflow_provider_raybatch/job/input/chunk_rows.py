# SPDX-License-Identifier: Apache-2.0
"""Rows that were read, as Python values for the prompt and as columns for the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.job.input.partitions import Partition
from airflow_provider_raybatch.job.input.plain_types import as_plain, decoded_bytes
from airflow_provider_raybatch.job.input.table import table_of

_PORTION_BYTES = 256 * 1024 * 1024
"""Bytes of the rows of one part. Arrow's columns of text hold 2 GiB."""


@dataclass(frozen=True)
class BadRow:
    """A row that could not be read. `text` is its raw text, cut."""

    reason: str
    text: str


class ChunkRows:
    """Rows of one file.

    :param rows: for the prompt.
    :param table: their columns, where the source is Arrow; else they are made of `rows`.
    :param partition: columns that the file's folders name; they replace those of the file.
    :param shown: values of the partition that the prompt needs.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any] | BadRow],
        table: pa.Table | None = None,
        partition: Partition | None = None,
        shown: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows = [{**row, **shown} if isinstance(row, dict) else row for row in rows] if shown else rows
        self.from_file = rows
        self.table = table
        self.partition = partition or {}

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> pa.Table:
        """All input columns; bad rows are null throughout."""
        return self._complete(as_plain(self._columns_of_file()), len(self))

    def _columns_of_file(self) -> pa.Table:
        if self.table is not None:
            return self.table.drop_columns([n for n in self.table.column_names if n in self.partition])
        rows = [row if isinstance(row, dict) else {} for row in self.from_file]
        if self.partition:
            rows = [{n: value for n, value in row.items() if n not in self.partition} for row in rows]
        return table_of(rows)

    def _complete(self, columns: pa.Table, rows: int) -> pa.Table:
        for name, value in self.partition.items():
            columns = columns.append_column(name, pa.repeat(value, rows))
        return columns

    def portions(self, positions: Sequence[int]) -> Iterator[tuple[Sequence[int], pa.Table]]:
        """The columns of some rows, at least one, in pieces that fit a part.

        :param positions: ascending.
        """
        columns = self._columns_of_file()

        def portion(chosen: Sequence[int]) -> Iterator[tuple[Sequence[int], pa.Table]]:
            span = columns.slice(chosen[0], chosen[-1] + 1 - chosen[0])
            if len(chosen) > 1 and decoded_bytes(span) > _PORTION_BYTES:
                middle = len(chosen) // 2
                yield from portion(chosen[:middle])
                yield from portion(chosen[middle:])
            else:
                places = pa.array([place - chosen[0] for place in chosen], pa.int64())
                yield chosen, self._complete(as_plain(span).take(places), len(chosen))

        return portion(positions)


def portions(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """The columns of rows of many chunks, in as few pieces as types and memory allow.

    :param chosen: rows, each with its place there; those of one `ChunkRows` follow each other.
    :returns: places in `chosen`, and their table.
    """
    pending: tuple[list[int], list[pa.Table]] = [], []
    size = 0
    for numbers, table in _tables(chosen):
        bytes_ = decoded_bytes(table)
        fits = not pending[1] or (
            size + bytes_ <= _PORTION_BYTES and table.schema.equals(pending[1][0].schema, check_metadata=True)
        )
        if not fits:
            yield pending[0], pa.concat_tables(pending[1])
            pending, size = ([], []), 0
        pending[0].extend(numbers)
        pending[1].append(table)
        size += bytes_
    if pending[1]:
        yield pending[0], pa.concat_tables(pending[1])


def _tables(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """As :func:`portions`, at least one table for each file or partition."""
    text: dict[Any, list[int]] = {}
    arrow: dict[int, list[int]] = {}
    for number, (rows, _) in enumerate(chosen):
        # Rows of text share a table; one of each chunk would have types of its own.
        if rows.table is None:
            text.setdefault(tuple(rows.partition.items()), []).append(number)
        else:
            arrow.setdefault(id(rows), []).append(number)
    for numbers in text.values():
        found = [chosen[number] for number in numbers]
        joined = ChunkRows([rows.from_file[place] for rows, place in found], None, found[0][0].partition)
        for places, table in joined.portions(range(len(found))):
            yield [numbers[place] for place in places], table
    for numbers in arrow.values():
        rows = chosen[numbers[0]][0]
        by_place = {chosen[number][1]: number for number in numbers}
        for places, table in rows.portions(sorted(by_place)):
            yield [by_place[place] for place in places], table
