# SPDX-License-Identifier: Apache-2.0
"""Rows that steps check: raw documents, read as a job reads its source, and answers of a batch inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.location import DESTINATION_SCHEMES, check_location
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.dataset import Result, s3_credentials
from airflow_provider_raybatch.dataset.errors import UsageError, reading
from airflow_provider_raybatch.dataset.opening import open_files
from airflow_provider_raybatch.dataset.rows import letters, require
from airflow_provider_raybatch.job.input.chunk_rows import BadRow, partitions
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.opening import open_file
from airflow_provider_raybatch.job.input.reader import Reader, parquet_rows
from airflow_provider_raybatch.job.input.survey import Surveyed, cut, survey
from airflow_provider_raybatch.job.input.table import as_text
from airflow_provider_raybatch.workflows.sift import DROP_COLUMNS, Checked, Drop, text_column, with_column

_BATCH_ROWS = 2048
_PARQUET_ROWS = 256


def read_raw(
    sources: Sequence[str], columns: Sequence[str], aws_conn_id: str | None = None, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Documents with these columns as text, and `source`, `line`, `origin` and `broken`.

    :param sources: files, folders or globs, local or ``s3://``, as of an operator's `source`; the files of
        one of them have one format.
    :param columns: to read; a value that is not text is written as JSON; a missing one is null.
    :param options: `format` and `csv_options`, as of an operator.
    :returns: batches; `source` is the file, `line` the number of the row in it, from 1 (a blank line is no
        row), `origin` both as one name, and `broken` the error of a broken row, else null. The first batch is
        empty.
    :raises UsageError: a location can't be used, or a file that is not JSON lines lacks a column.
    :raises RaybatchError: as in a job: the file does not exist, or can't be split into rows.
    """
    schema = pa.schema([
        *((name, pa.string()) for name in columns),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("origin", pa.string()),
        ("broken", pa.string()),
    ])
    if len(set(schema.names)) < len(schema.names):
        raise UsageError(
            "columns: 'source', 'line', 'origin' and 'broken' are added, and each name may stand once; "
            "choose others."
        )
    yield pa.RecordBatch.from_pylist([], schema=schema)
    for source in sources:
        try:
            check_location(source, DESTINATION_SCHEMES)
        except ValueError as error:
            raise UsageError(f"sources: {error}.") from None
        given = parse(InputArguments, {"source": [source], **options})
        yield from _documents(given, schema, list(columns), s3_credentials(source, aws_conn_id))


class Unbroken:
    """Drops the rows that :func:`read_raw` could not read. Rule: ``broken_row``."""

    def __init__(self, name: str = "readable") -> None:
        self.name = name

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        broken = text_column(batch, "broken")
        return Checked(batch, [None if why is None else Drop("broken_row", why) for why in broken])


def _documents(
    given: InputArguments, schema: pa.Schema, columns: list[str], credentials: AwsCredentials | None
) -> Iterator[pa.RecordBatch]:
    listing = resolve(given, credentials)
    found, folders = survey(listing, credentials), partitions(listing)
    for file, of_file, named in zip(listing.files, found.schemas, folders, strict=True):
        present = [*of_file.names, *named] if of_file else []  # none of an empty CSV either
        if missing := [name for name in columns if present and name not in present]:
            raise UsageError(
                f"columns: {missing[0]!r} is not in {file.uri}, which has {', '.join(present)}; correct the "
                "name."
            )
    lines = Counter[int]()
    for number, found_rows in _rows(listing, found, columns, credentials):
        uri, rows = listing.files[number].uri, []
        for row in found_rows:
            lines[number] += 1
            if isinstance(row, BadRow):
                texts: dict[str, str | None] = {"broken": row.reason}
            else:
                texts = {name: as_text(row.get(name)) for name in columns}
            rows.append({**texts, "source": uri, "line": lines[number], "origin": f"{uri}:{lines[number]}"})
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _rows(
    listing: Listing, found: Surveyed, columns: list[str], credentials: AwsCredentials | None
) -> Iterator[tuple[int, Sequence[dict[str, Any] | BadRow]]]:
    """Some rows of one file at a time, with its number; a row group of Parquet may be larger than memory."""
    if listing.format == "parquet":
        for number, (file, folders) in enumerate(zip(listing.files, partitions(listing), strict=True)):
            named = {name: value.as_py() for name, value in folders.items() if name in columns}
            own = [name for name in columns if name not in named]
            with reading(file.uri), open_file(file, credentials) as stream:
                parquet = pq.ParquetFile(stream, page_checksum_verification=True)
                for batch in parquet.iter_batches(_PARQUET_ROWS, columns=own, use_threads=False):
                    rows = parquet_rows(pa.Table.from_batches([batch]))
                    yield number, [{**row, **named} if isinstance(row, dict) else row for row in rows]
        return
    reader = Reader(listing, columns, credentials, whole=False)
    for chunk in cut(found, _BATCH_ROWS, None):
        yield chunk.file, reader.read(chunk).rows


def one_row_a_sample(
    batches: Iterable[pa.RecordBatch], completions: str = "completions", response: str = "response"
) -> Iterator[pa.RecordBatch]:
    """One row per sample; with ``n`` = 1 that is one row per input row.

    :param completions: column of all samples; removed. If it does not exist, rows stay as they are.
    :param response: column of the first sample's text; gets the text of each sample.
    :returns: batches with one more column, `sample`, that counts from 0.
    :raises UsageError: the column `response` is missing, or `sample` is a column already.
    """
    for batch in batches:
        require(batch.schema.names, [response], "response")
        if completions not in batch.schema.names:
            yield with_column(batch, "sample", pa.array([0] * batch.num_rows, pa.int64()))
            continue
        lists = batch.column(completions)
        rows, texts = pc.list_parent_indices(lists), pc.struct_field(pc.list_flatten(lists), "text")
        parents = rows.to_numpy()
        numbers = np.arange(len(parents)) - np.searchsorted(parents, parents)
        exploded = batch.drop_columns([completions]).take(rows)
        exploded = exploded.set_column(exploded.schema.get_field_index(response), response, texts)
        yield with_column(exploded, "sample", pa.array(numbers, pa.int64()))


def first_values(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    """The rows with one column in place of several: the first value that is not null, or null.

    :param columns: by the name of the new column, the names of those that it replaces, such as ``{"answer":
        ["draft_answer", "repair_answer"]}``. Each of them is named once.
    :raises UsageError: a column is missing or named twice, the types of those that are put into one
        differ, or another column has the new name.
    """
    replaced = [name for names in columns.values() for name in names]
    if twice := [name for name in replaced if replaced.count(name) > 1]:
        raise UsageError(f"columns: {twice[0]!r} is named twice; put it into one of the new columns.")
    for batch in batches:
        found = {new: _first(batch, new, names) for new, names in columns.items()}
        batch = batch.drop_columns(replaced)
        for new, values in found.items():
            batch = with_column(batch, new, values)
        yield batch


def _first(batch: pa.RecordBatch, new: str, names: Sequence[str]) -> pa.Array:
    if not names:
        raise UsageError(f"columns: {new!r} replaces no column; name at least one.")
    for name in names:
        require(batch.schema.names, [name], "columns")
    try:
        return pc.coalesce(*(batch.column(name) for name in names))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(f"{name} ({batch.schema.field(name).type})" for name in names)
        raise UsageError(f"columns: {new!r} can't hold {kinds}; name columns of one type.") from error


def failed_rows(
    result: Result, step: str, schema: pa.Schema, aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows for which a batch inference has no response.

    :param step: name for ``dropped_by``; ``rule`` is the step of the job that failed, such as ``engine``.
    :param schema: schema of the dataset that gets the rows; columns that a row lacks are null.
    :raises DatasetError: `result` has no manifest that can be read, or its dead letters are gone or broken.
    """
    manifest = open_files(result, aws_conn_id).manifest
    if not isinstance(manifest, BatchManifest) or manifest.dead_letter_uri is None:
        return
    found = _rows_of(manifest, step, aws_conn_id)
    while rows := list(islice(found, _BATCH_ROWS)):
        arrays = [_array([row.get(one.name) for row in rows], one.type) for one in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows_of(manifest: BatchManifest, step: str, aws_conn_id: str | None) -> Iterator[dict[str, Any]]:
    for letter in letters(manifest, s3_credentials(manifest.uri, aws_conn_id)):
        drop = dict(zip(DROP_COLUMNS, (step, letter["step"], letter["reason"]), strict=True))
        yield {**(letter["row"] or {}), **drop}


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.nulls(len(values), kind)  # For example a timestamp, which is text in a dead letter.
