# SPDX-License-Identifier: Apache-2.0
"""Rows of a finished dataset: by their positions in it, and those that failed."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.errors import DatasetError, UsageError, needing, reading

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_raybatch.contract.secrets import AwsCredentials
    from airflow_provider_raybatch.dataset.files import DatasetFiles
_TEXTS = ("id", "step", "reason", "request", "response")


def rows_at(
    dataset: DatasetFiles[Any], places: Sequence[int], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows at `places`, which ascend.

    Of Parquet files only the row groups that hold them are read; of JSONL, whole files.

    :raises DatasetError: the dataset lacks a column, or a file is damaged.
    """
    lazy = dataset.arrow_dataset()
    import pyarrow as pa

    names = list(lazy.schema.names if columns is None else columns)
    require(lazy.schema.names, names, "columns")
    schema = pa.schema([lazy.schema.field(name) for name in names])
    if not places:
        return schema.empty_table()
    fragments = {fragment.path: fragment for fragment in lazy.get_fragments()}
    first, tables = 0, list[pa.Table]()
    with reading(dataset.manifest.uri):
        for file in dataset.manifest.files:
            inside = _within(places, first, file.rows)
            first += file.rows
            if inside:
                tables += _taken(fragments[file.path], inside, lazy.schema, names)
        return pa.concat_tables(tables)


def as_strings(values: Any) -> Any:
    """An Arrow array as text; what Arrow can't cast, as Python writes it."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if one is None else str(one) for one in values.to_pylist()], pa.string())


def require(there: Sequence[str], wanted: Sequence[str], field: str) -> None:
    """Check that columns exist.

    :param field: the argument that the error names.
    :raises DatasetError: one does not.
    """
    for name in wanted:
        if name not in there:
            raise UsageError(
                f"{field}: {name!r} is not a column of the dataset, which has {', '.join(there)}; correct "
                "the name."
            )


def _taken(fragment: Any, places: list[int], schema: pa.Schema, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a file, a row group at a time."""
    import pyarrow as pa

    if not hasattr(fragment, "row_groups"):
        yield fragment.scanner(schema=schema, columns=columns).take(pa.array(places))
        return
    first = 0
    for number, group in enumerate(fragment.row_groups):
        inside = _within(places, first, group.num_rows)
        first += group.num_rows
        if inside:
            part = fragment.subset(row_group_ids=[number])
            yield part.scanner(schema=schema, columns=columns).take(pa.array(inside))


def _within(places: Sequence[int], first: int, count: int) -> list[int]:
    """Those of `places` that lie in `count` rows from `first` on, from there."""
    return [
        place - first for place in places[bisect_left(places, first) : bisect_left(places, first + count)]
    ]


def letters(manifest: BatchManifest, credentials: AwsCredentials | None) -> Iterator[dict[str, Any]]:
    """The dead letters one by one, in the order of the input: `ordinal`, `step`, `reason`, `row` and more.

    :raises DatasetError: they can't be read, or a line is not a dead letter.
    """
    from airflow_provider_raybatch.storage.errors import StorageError
    from airflow_provider_raybatch.storage.folder import folder

    if manifest.dead_letter_uri is None:
        return
    place = folder(manifest.dead_letter_uri, credentials)
    try:
        for file in place.list():
            with place.open(file.path, file.size) as lines:
                for line in lines:
                    yield _letter(line, f"{place.uri}/{file.path}")
    except (StorageError, OSError) as error:
        raise DatasetError(f"dead_letter_uri: {place.uri} can't be read ({error}).") from error


def _letter(line: bytes, file: str) -> dict[str, Any]:
    try:
        letter = json.loads(line)
        if {"ordinal", "step", "reason", "row"} <= letter.keys() and isinstance(
            letter.get("row") or {}, dict
        ):
            return dict(letter)
        why = "it lacks a field"
    except (ValueError, AttributeError) as error:
        why = str(error)
    raise UsageError(
        f"dead_letter_uri: {file} has a line that is not a dead letter ({why}); remove the file if it came "
        "from elsewhere, or run the batch inference again."
    )


def dead_letters(manifest: BatchManifest, credentials: AwsCredentials | None) -> pa.Table:
    """See :meth:`Dataset.dead_letters`."""
    with needing("pyarrow"):
        import pyarrow as pa
    found = list(letters(manifest, credentials))
    if len(found) != manifest.counts.error:
        raise DatasetError(
            f"dead_letter_uri: {manifest.dead_letter_uri} has {count_of(len(found), 'row')}, but the "
            f"manifest says {manifest.counts.error:,}; run the batch inference again."
        )
    columns = {"ordinal": pa.array([letter["ordinal"] for letter in found], pa.int64())}
    for name in _TEXTS:
        columns[name] = pa.array([_text(letter, name) for letter in found], pa.string())
    columns["row"] = _rows([letter.get("row") for letter in found])
    return pa.table(columns)


def _text(letter: dict[str, Any], name: str) -> str | None:
    value = letter.get(name)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _rows(rows: list[dict[str, Any] | None]) -> pa.Array:
    """A struct of the input columns; null for a row that could not be read."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row or ()))
    if not names:
        return pa.nulls(len(rows))
    arrays = [_column([(row or {}).get(name) for row in rows]) for name in names]
    return pa.StructArray.from_arrays(arrays, names, mask=pa.array([row is None for row in rows]))


def _column(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        texts = (None if one is None else json.dumps(one, ensure_ascii=False) for one in values)
        return pa.array(texts, pa.string())
