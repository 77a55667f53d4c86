# SPDX-License-Identifier: Apache-2.0
"""Read the dead letters of a batch inference as dropped rows, so that one dataset has every dropped row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.places import place
from airflow_provider_raybatch.workflows.rows import Rows
from airflow_provider_raybatch.workflows.sift import DROP_COLUMNS

_BATCH_ROWS = 1024


def failed_rows(
    result: Result, step: str, schema: pa.Schema, aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows for which a batch inference has no response.

    :param step: name for ``dropped_by``; ``rule`` is the step of the job that failed, such as ``engine``.
    :param schema: schema of the dataset that gets the rows; columns that a row lacks are null.
    :raises WorkflowError: `result` has no manifest that can be read, or a file of its dead letters is broken.
    :raises StorageError: the dead letters can't be read.
    """
    for manifest in Rows(result, aws_conn_id=aws_conn_id).manifests:
        if not isinstance(manifest, BatchManifest) or manifest.dead_letter_uri is None:
            continue
        folder = place(manifest.dead_letter_uri, aws_conn_id)
        for file in folder.list():
            with folder.open(file.path, file.size) as lines:
                place_of = f"{folder.uri}/{file.path}"
                while rows := [_row(line, step, place_of) for line in islice(lines, _BATCH_ROWS)]:
                    arrays = [_array([row.get(one.name) for row in rows], one.type) for one in schema]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(line: bytes, step: str, file: str) -> dict[str, Any]:
    try:
        letter = json.loads(line)
        drop = dict(zip(DROP_COLUMNS, (step, letter["step"], letter["reason"]), strict=True))
        return {**(letter["row"] or {}), **drop}
    except (ValueError, LookupError, TypeError) as error:
        raise WorkflowError(
            f"dead_letter_uri: {file} has a line that is not a dead letter ({error}); remove the file if it "
            "came from elsewhere, or run the batch inference again."
        ) from error


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.nulls(len(values), kind)  # For example a timestamp, which is text in a dead letter.
