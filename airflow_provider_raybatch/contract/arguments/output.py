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

    :param postprocess: part of the fingerprint, and neither of the response digest nor of the request keys,
        so that changing it pays for no response.
    :param postprocess_digest: hash of the source that travels with the job, set at submission, so that
        changed code is a changed job.
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
