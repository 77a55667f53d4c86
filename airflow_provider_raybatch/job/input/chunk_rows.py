# SPDX-License-Identifier: Apache-2.0
"""Rows that were read, as Python values for the prompt and as columns for the dataset.

Folders name columns, too, as Hive, Spark and Athena write them: ``day=2026-01-31/`` above a file. As in
Spark, the folder's value replaces a column of the same name in the file, and types follow from the values of
all files: whole numbers, dates, else text.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.layout import HIVE_NULL
from airflow_provider_raybatch.contract.location import split_hub
from airflow_provider_raybatch.job.input import http
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.table import as_plain, decoded_bytes, table_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PORTION_BYTES = 256 * 1024 * 1024
"""Bytes of the rows of one part. Arrow's columns of text hold 2 GiB."""

Partition = dict[str, pa.Scalar]
"""The columns that the folders above one file name, each with its value."""


def partitions(listing: Listing) -> list[Partition]:
    """The partition columns of each file, outermost folder first; none for files behind ``https://``."""
    named = [_named(file.uri) for file in listing.files]
    values: dict[str, list[str | None]] = {}
    for folders in named:
        for name, value in folders.items():
            values.setdefault(name, []).append(value)
    types = {
        name: _type_of([value for value in found if value is not None]) for name, found in values.items()
    }
    return [{name: _scalar(value, types[name]) for name, value in folders.items()} for folders in named]


def _named(uri: str) -> dict[str, str | None]:
    if http.is_url(uri):
        return {}
    at = split_hub(uri)
    path = at.path if at else uri.partition("://")[2].partition("/")[2] if "://" in uri else uri
    pairs = [folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder[1:]]
    return {unquote(name): None if value == HIVE_NULL else unquote(value) for name, value in pairs}


def _type_of(values: Sequence[str]) -> pa.DataType:
    if not values:
        return pa.string()
    if all(_INTEGER.fullmatch(value) and -(2**63) <= int(value) < 2**63 for value in values):
        return pa.int64()
    try:
        are_dates = all(_DATE.fullmatch(value) and datetime.date.fromisoformat(value) for value in values)
    except ValueError:  # such as 2026-02-30
        are_dates = False
    return pa.date32() if are_dates else pa.string()


def _scalar(value: str | None, kind: pa.DataType) -> pa.Scalar:
    if value is None or pa.types.is_string(kind):
        return pa.scalar(value, kind)
    return pa.scalar(int(value) if pa.types.is_integer(kind) else datetime.date.fromisoformat(value), kind)


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
    :param answers: columns that earlier steps have added, of all rows; ``None`` without any.
    :param from_file: the rows without these columns, where `rows` have them.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any] | BadRow],
        table: pa.Table | None = None,
        partition: Partition | None = None,
        shown: Mapping[str, Any] | None = None,
        answers: pa.Table | None = None,
        from_file: Sequence[dict[str, Any] | BadRow] | None = None,
    ) -> None:
        self.rows = [{**row, **shown} if isinstance(row, dict) else row for row in rows] if shown else rows
        self.from_file = rows if from_file is None else from_file
        self.table = table
        self.partition = partition or {}
        self.answers = answers

    def with_answers(self, places: Sequence[int], answers: pa.Table) -> ChunkRows:
        """Some rows, none of them bad, with the columns that a step has added.

        :param answers: of exactly these rows, in their order.
        """
        index = pa.array(places, pa.int64())
        table = None if self.table is None else as_plain(self.table).take(index)
        from_file = [self.from_file[place] for place in places]
        before = zip((self.rows[place] for place in places), answers.to_pylist(), strict=True)
        rows = [{**row, **own} for row, own in before if isinstance(row, dict)]
        if self.answers is not None:
            earlier = self.answers.take(index)
            answers = pa.table({**_columns(earlier), **_columns(answers)})
        return ChunkRows(rows, table, self.partition, answers=answers, from_file=from_file)

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> pa.Table:
        """All input columns; bad rows are null throughout."""
        return self._complete(as_plain(self._columns_of_file()), range(len(self)))

    def _columns_of_file(self) -> pa.Table:
        if self.table is not None:
            return self.table.drop_columns([n for n in self.table.column_names if n in self.partition])
        rows = [row if isinstance(row, dict) else {} for row in self.from_file]
        if self.partition:
            rows = [{n: value for n, value in row.items() if n not in self.partition} for row in rows]
        return table_of(rows)

    def _complete(self, columns: pa.Table, chosen: Sequence[int]) -> pa.Table:
        """Columns of the chosen rows, with those that are not the file's."""
        added = {name: pa.repeat(value, len(chosen)) for name, value in self.partition.items()}
        if self.answers is not None:
            added |= _columns(self.answers.take(pa.array(chosen, pa.int64())))
        if added and not columns.num_columns:  # a table without columns has no rows
            return pa.table(added)
        for name, column in added.items():
            columns = columns.append_column(name, column)
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
                yield chosen, self._complete(as_plain(span).take(places), chosen)

        return portion(positions)


def portions(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """The columns of rows of many chunks, in as few pieces as types and memory allow.

    :param chosen: rows, each with its place there; those of one `ChunkRows` follow each other.
    :returns: places in `chosen`, and their table.
    """
    waiting: dict[Any, _Together] = {}
    for numbers, table in _tables(chosen):
        bytes_ = decoded_bytes(table)
        kind = table.schema.serialize().to_pybytes()  # with its metadata
        together = waiting.get(kind)
        if together is not None and together.bytes + bytes_ > _PORTION_BYTES:
            yield waiting.pop(kind).in_order()
        waiting.setdefault(kind, _Together()).add(numbers, table, bytes_)
    for together in waiting.values():
        yield together.in_order()


class _Together:
    """Tables of one schema."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._tables: list[pa.Table] = []
        self.bytes = 0

    def add(self, numbers: list[int], table: pa.Table, bytes_: int) -> None:
        """Put rows to the others; `numbers` are their places among those that were chosen."""
        self._numbers += numbers
        self._tables.append(table)
        self.bytes += bytes_

    def in_order(self) -> tuple[list[int], pa.Table]:
        """All of them, in the order in which they were chosen."""
        table, numbers = pa.concat_tables(self._tables), sorted(self._numbers)
        if numbers != self._numbers:
            order = np.argsort(self._numbers)
            table = table.take(pa.array(order))
        return numbers, table


def _tables(chosen: Sequence[tuple[ChunkRows, int]]) -> Iterator[tuple[list[int], pa.Table]]:
    """As :func:`portions`, at least one table for each file or partition."""
    text: dict[Any, list[int]] = {}
    arrow: dict[int, list[int]] = {}
    for number, (rows, _) in enumerate(chosen):
        # Rows of text share a table; one of each chunk would have types of its own.
        if rows.table is None:
            answered = None if rows.answers is None else tuple(rows.answers.schema)
            text.setdefault((tuple(rows.partition.items()), answered), []).append(number)
        else:
            arrow.setdefault(id(rows), []).append(number)
    for numbers in text.values():
        found = [chosen[number] for number in numbers]
        own, partition = [rows.from_file[place] for rows, place in found], found[0][0].partition
        joined = ChunkRows(own, None, partition, answers=_joined_answers(found))
        for places, table in joined.portions(range(len(found))):
            yield [numbers[place] for place in places], table
    for numbers in arrow.values():
        rows = chosen[numbers[0]][0]
        by_place = {chosen[number][1]: number for number in numbers}
        for places, table in rows.portions(sorted(by_place)):
            yield [by_place[place] for place in places], table


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _joined_answers(chosen: Sequence[tuple[ChunkRows, int]]) -> pa.Table | None:
    """The added columns of rows of several `ChunkRows` that have the same ones."""
    tables = [rows.answers.slice(place, 1) for rows, place in chosen if rows.answers is not None]
    return pa.concat_tables(tables) if tables else None
