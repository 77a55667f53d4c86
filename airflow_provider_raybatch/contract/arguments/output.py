# SPDX-License-Identifier: Apache-2.0
"""Where the dataset goes, and what it holds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.location import FolderLocation
from airflow_provider_raybatch.contract.names import ColumnName, ImportPath

OutputFormat = Literal["parquet", "jsonl"]

REUSED_COLUMN = "reused_from"


class OutputArguments(ContractModel):
    """Where the dataset goes, and what it holds.

    :param destination: a folder: local path, ``file://`` or ``s3://``.
    :param destination_format: of the published parts.
    :param rows_per_part: about how many rows a published part has; by default parts are of about 128 MiB.
    :param on_destination_owned: what to do when the folder holds the dataset of another task or run.
    :param output_prefix: put before the names of the output columns, to keep them apart from the input's.
    :param response_column: what the column with the response is called; by default ``response`` after
        `output_prefix`, which is not put before this name.
    :param postprocess: a user's function, ``module:name``, called as ``function(row, response)`` on the
        cluster when all responses are there; it returns a ``dict`` of columns for the dataset. Part of the
        fingerprint, and neither of the response digest nor of the request keys, so that changing it pays for
        no response.
    :param postprocess_digest: hash of the source that travels with the job, set at submission, so that
        changed code is a changed job.
    :param preserve_order: a promise that the rows are in input order; `ordered` in the manifest.
    """

    destination: FolderLocation
    destination_format: OutputFormat = "parquet"
    rows_per_part: int | None = Field(default=None, ge=1)
    on_destination_owned: Literal["refuse", "take_over"] = "refuse"
    output_prefix: str = ""
    response_column: ColumnName | None = None
    postprocess: ImportPath | None = None
    postprocess_digest: str | None = None
    preserve_order: bool = False
