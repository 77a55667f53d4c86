# SPDX-License-Identifier: Apache-2.0
"""A user's function that makes more columns of the dataset out of a row and its response.

It is called when all responses are there, so a changed function costs no request. Of its two passes over the
ranges of the dataset, the first calls it and notes what it returns; the second adds that to the rows, in
types that fit all values.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.base import checked_column_name, shown
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.json_types import NULL, TEXT, Kind, arrow_type, join, kind_of
from airflow_provider_raybatch.job.input.reader import parquet_rows
from airflow_provider_raybatch.job.input.table import KINDS, as_parquet, kinds_of, members, restored, table_of
from airflow_provider_raybatch.job.request.render import load_function
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.tasks.base import with_failures
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import checked, with_checksum
from airflow_provider_raybatch.storage.folder import Folder

STEP = "postprocess"
"""The name of the argument, and of the step in dead letters."""
MOST_COLUMNS = 2000
_ROWS_AT_ONCE = 1000

Function = Callable[[dict[str, Any], Any], Any]


@dataclass(frozen=True)
class Postprocess:
    """What the two passes of a commit share.

    :param function: ``module:function``.
    :param notes: folder of the first pass's notes, relative to the destination.
    :param types: of the columns that the function adds, once the first pass is over.
    """

    function: str
    notes: str
    types: dict[str, pa.DataType] = field(default_factory=dict)

    def path(self, number: int) -> str:
        """The notes on a range."""
        return f"{self.notes}/{number:05d}.parquet"


@dataclass(frozen=True)
class Seen:
    """A column in some rows: the kind of its values, and one of them with its row."""

    kind: Kind
    ordinal: int
    example: str


def load(path: str) -> Function:
    """Import the function, and check that it takes a row and a response.

    :raises PreflightError: it can't be imported, or takes other arguments.
    """
    function: Function = load_function(path, STEP)
    try:
        inspect.signature(function).bind({}, "")
    except TypeError as error:
        raise PreflightError(
            f"{STEP}: {path!r} can't be called with a row and a response ({error}); write it as "
            f"def {path.partition(':')[2]}(row, response)."
        ) from None
    except ValueError:  # written in C, without a signature
        pass
    return function


def apply(
    rows: pa.Table, responses: pa.ChunkedArray, function: Function, taken: frozenset[str]
) -> Iterator[dict[str, Any] | RowFailure]:
    """What the function returns for each row, as plain values, or why that can't be used.

    :param rows: input columns.
    :param taken: lower-case names of the dataset's other columns.
    """
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        answers = responses.slice(start, _ROWS_AT_ONCE).to_pylist()
        for row, answer in zip(parquet_rows(rows.slice(start, _ROWS_AT_ONCE)), answers, strict=True):
            yield _called(function, row, answer, taken)


def note(
    folder: Folder, path: str, ordinals: Sequence[int], made: Sequence[dict[str, Any] | RowFailure]
) -> dict[str, Seen]:
    """Write down what the function returned for some rows; returns its columns.

    :raises RaybatchError: no type fits all values of a column.
    :raises StorageError: it can't be written.
    """
    values = [{} if isinstance(one, RowFailure) else one for one in made]
    added = table_of(values)
    seen = {
        name: _seen(name, kind, [row.get(name) for row in values], ordinals)
        for name, kind in kinds_of(added.schema).items()
    }
    reasons = [one.reason if isinstance(one, RowFailure) else None for one in made]
    table = pa.table({"ordinal": pa.array(ordinals, pa.uint64()), "reason": pa.array(reasons, pa.string())})
    if seen:
        columns = [column.combine_chunks() for column in added.columns]
        table = table.append_column("added", pa.StructArray.from_arrays(columns, names=added.column_names))
        table = table.replace_schema_metadata({KINDS: added.schema.metadata[KINDS]})
    folder.write(path, with_checksum(as_parquet(table, compression="zstd")))
    return seen


def column_types(ranges: Iterable[Mapping[str, Seen]]) -> dict[str, pa.DataType]:
    """The type of each column that the function adds, in the order in which they appear.

    :raises RaybatchError: no type fits all values of a column, or the columns don't form a table.
    """
    found: dict[str, Seen] = {}
    for columns in ranges:
        for name, one in columns.items():
            found[name] = _together(name, found.get(name), one)
    if len(found) > MOST_COLUMNS:
        raise _user_error(
            f"it returned {count_of(len(found), 'different column')}, and a dataset may have "
            f"{MOST_COLUMNS:,}; put what differs from row to row into one dictionary."
        )
    by_case: dict[str, str] = {}
    for name in found:
        other = by_case.setdefault(name.lower(), name)
        if other != name:
            raise _user_error(
                f"it returned columns {other!r} (row {found[other].ordinal}) and {name!r} (row "
                f"{found[name].ordinal}), which many warehouses take for one; write both alike."
            )
    return {name: pa.string() if one.kind == NULL else arrow_type(one.kind) for name, one in found.items()}


def with_added(table: pa.Table, folder: Folder, postprocess: Postprocess, number: int) -> pa.Table:
    """The rows of a range with the columns that the function added, as ``added``.

    A row for which it failed becomes a failed row.

    :param table: the same rows as in the first pass.
    :raises StorageError: the notes can't be read, or are damaged.
    """
    good = np.flatnonzero(table["ok"].to_numpy())
    noted = _noted(folder, postprocess.path(number))
    if not np.array_equal(noted["ordinal"].to_numpy(), table["ordinal"].to_numpy()[good]):
        raise RaybatchError(
            f"{STEP}: the rows of range {number} changed while they were published; run the task again.",
            FailureClass.INTERNAL,
        )
    places = np.full(table.num_rows, -1)
    places[good] = np.arange(len(good))
    of_row = pa.array(places, mask=places < 0)
    kinds = kinds_of(noted.schema)
    values = members(noted["added"]) if kinds else {}
    columns = [
        restored(values[name], kinds[name], kind) if name in kinds else pa.nulls(noted.num_rows, kind)
        for name, kind in postprocess.types.items()
    ]
    if columns:
        struct = pa.StructArray.from_arrays(columns, names=list(postprocess.types))
        table = table.append_column("added", struct.take(of_row))
    return with_failures(table, noted["reason"].combine_chunks().take(of_row), STEP)


def _noted(folder: Folder, path: str) -> pa.Table:
    content = folder.read(path)
    try:
        return pq.read_table(io.BytesIO(checked(content)))
    except ValueError as error:
        raise StorageError(
            f"destination: {folder.uri}/{path} was damaged after it was written ({error}); a retry of the "
            "task calls the function again, and keeps all responses."
        ) from error


def _called(
    function: Function, row: dict[str, Any] | BadRow, response: Any, taken: frozenset[str]
) -> dict[str, Any] | RowFailure:
    if isinstance(row, BadRow):
        return RowFailure(STEP, row.reason)
    try:
        made = function(row, response)
    except BaseException as error:  # a user's function may raise anything, SystemExit included
        return RowFailure.of(STEP, error)
    returned = "the function returned"
    if not isinstance(made, Mapping):
        return RowFailure(STEP, f"{returned} {shown(made)}; return a dictionary of columns")
    columns = {}
    for name, value in made.items():
        if not isinstance(name, str):
            return RowFailure(STEP, f"{returned} a column named {shown(name)}; name it by a text")
        if name.lower() in taken:
            return RowFailure(STEP, f"{returned} a column {name!r}, which the dataset has already; rename it")
        try:
            columns[checked_column_name(name)] = _plain(value)
        except (ValueError, RecursionError) as error:
            return RowFailure(STEP, f"{returned} a column {shown(name)} that can't be used: {error}")
    return columns


def _plain(value: Any) -> Any:
    """The value as JSON's reader would make it.

    :raises ValueError: no column holds such a value.
    """
    plain = _without_subclasses(value)
    if kind_of([plain]) == TEXT:
        raise ValueError(
            f"no column holds {shown(value)}; return whole numbers of at most 64 bits, and lists and "
            "dictionaries of one type each"
        )
    return plain


def _without_subclasses(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        str.__str__(value).encode()
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_without_subclasses(inner) for inner in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {str(name): _without_subclasses(inner) for name, inner in value.items()}
    raise ValueError(
        f"{shown(value)} is a {type(value).__name__}; return text, a number, true or false, a list, or a "
        "dictionary whose keys are texts"
    )


def _seen(name: str, kind: Kind, values: Sequence[Any], ordinals: Sequence[int]) -> Seen:
    if kind == TEXT:  # no type fits all values: find the first two that differ
        found: Seen | None = None
        for value, ordinal in zip(values, ordinals, strict=True):
            found = _together(name, found, Seen(kind_of([value]), ordinal, shown(value)))
    place = next((place for place, value in enumerate(values) if value is not None), 0)
    return Seen(kind, ordinals[place], shown(values[place]))


def _together(name: str, one: Seen | None, other: Seen) -> Seen:
    if one is None or one.kind == NULL:
        return other
    kind = join(one.kind, other.kind)
    if kind == TEXT:
        then = "which no type fits both; return one type, or None where there is no value."
        raise _user_error(
            f"column {name!r} has {one.example} in row {one.ordinal} and {other.example} in row "
            f"{other.ordinal}, {then}",
            public=f"column {name!r} has values in row {one.ordinal} and in row {other.ordinal}, {then}",
        )
    return replace(one, kind=kind)


def _user_error(text: str, public: str | None = None) -> RaybatchError:
    public = None if public is None else f"{STEP}: {public}"
    return RaybatchError(f"{STEP}: {text}", FailureClass.USER_ERROR, public=public)
