# SPDX-License-Identifier: Apache-2.0
"""Read raw documents as a job reads its source; a broken row becomes a row with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.location import DESTINATION_SCHEMES, check_location
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.dataset.errors import reading as reading_files
from airflow_provider_raybatch.job.input.chunk_rows import BadRow, partitions
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.opening import open_file
from airflow_provider_raybatch.job.input.reader import Reader, parquet_rows
from airflow_provider_raybatch.job.input.survey import Surveyed, cut, survey
from airflow_provider_raybatch.job.input.table import as_text
from airflow_provider_raybatch.workflows.errors import WorkflowError, reading
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column

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
    :raises WorkflowError: there is no such file, its rows can't be told apart, or one that is not JSON lines
        lacks a column.
    """
    schema = pa.schema([
        *((name, pa.string()) for name in columns),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("origin", pa.string()),
        ("broken", pa.string()),
    ])
    if len(set(schema.names)) < len(schema.names):
        raise WorkflowError(
            "columns: 'source', 'line', 'origin' and 'broken' are added, and each name may stand once; "
            "choose others."
        )
    yield pa.RecordBatch.from_pylist([], schema=schema)
    for source in sources:
        try:
            check_location(source, DESTINATION_SCHEMES)
        except ValueError as error:
            raise WorkflowError(f"sources: {error}.") from None
        with reading():
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
            raise WorkflowError(
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
            with reading_files(file.uri), open_file(file, credentials) as stream:
                parquet = pq.ParquetFile(stream, page_checksum_verification=True)
                for batch in parquet.iter_batches(_PARQUET_ROWS, columns=own, use_threads=False):
                    rows = parquet_rows(pa.Table.from_batches([batch]))
                    yield number, [{**row, **named} if isinstance(row, dict) else row for row in rows]
        return
    reader = Reader(listing, columns, credentials, whole=False)
    for chunk in cut(found, _BATCH_ROWS, None):
        yield chunk.file, reader.read(chunk).rows
