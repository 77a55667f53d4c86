# SPDX-License-Identifier: Apache-2.0
"""Read the dead letters of a batch inference as dropped rows, so that one dataset has every dropped row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result, s3_credentials
from airflow_provider_raybatch.dataset.dead_letters import letters
from airflow_provider_raybatch.workflows.errors import reading
from airflow_provider_raybatch.workflows.rows import Rows
from airflow_provider_raybatch.workflows.sift import DROP_COLUMNS

_BATCH_ROWS = 1024


def failed_rows(
    result: Result, step: str, schema: pa.Schema, aws_conn_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows for which a batch inference has no response.

    :param step: name for ``dropped_by``; ``rule`` is the step of the job that failed, such as ``engine``.
    :param schema: schema of the dataset that gets the rows; columns that a row lacks are null.
    :raises WorkflowError: `result` has no manifest that can be read, or its dead letters are gone or broken.
    """
    for manifest in Rows(result, aws_conn_id=aws_conn_id).manifests:
        if not isinstance(manifest, BatchManifest) or manifest.dead_letter_uri is None:
            continue
        found = _rows_of(manifest, step, aws_conn_id)
        while rows := list(islice(found, _BATCH_ROWS)):
            arrays = [_array([row.get(one.name) for row in rows], one.type) for one in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows_of(manifest: BatchManifest, step: str, aws_conn_id: str | None) -> Iterator[dict[str, Any]]:
    with reading():
        for letter in letters(manifest, s3_credentials(manifest.uri, aws_conn_id)):
            drop = dict(zip(DROP_COLUMNS, (step, letter["step"], letter["reason"]), strict=True))
            yield {**(letter["row"] or {}), **drop}


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.nulls(len(values), kind)  # For example a timestamp, which is text in a dead letter.
