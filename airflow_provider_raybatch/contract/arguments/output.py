# SPDX-License-Identifier: Apache-2.0
"""Where the dataset goes, what it and its report hold, and which responses are not paid for again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.durations import Seconds
from airflow_provider_raybatch.contract.last_run import LastRun
from airflow_provider_raybatch.contract.location import FolderLocation
from airflow_provider_raybatch.contract.names import ColumnName, ImportPath

OutputFormat = Literal["parquet", "jsonl", "openai_batch"]

REUSED_COLUMN = "reused_from"
OUTPUT_COLUMNS = (
    "response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens", "completions",
    REUSED_COLUMN,
)  # fmt: skip
"""Of text generation, before `output_prefix`; the last two are not in every dataset."""


class OutputArguments(ContractModel):
    """Where the dataset goes, and what it holds.

    :param postprocess: part of the fingerprint, and neither of the response digest nor of the request keys,
        so that changing it pays for no response.
    :param postprocess_digest: hash of the source that travels with the job, set at submission, so that
        changed code is a changed job.
    :param embed_dtype: of the numbers in vectors; engines make, and the response store keeps, ``float32``.
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
    embed_dtype: Literal["float32", "float16"] = "float32"

    def own_columns(self, optional: Iterable[str]) -> dict[str, str]:
        """Columns that a dataset may have of its own, in lower case, each with what to do for another's.

        :param optional: those that only some jobs have, before `output_prefix`.
        """
        names = [self.output_prefix + name for name in (*OUTPUT_COLUMNS, *optional)]
        names[0] = self.response_column or names[0]
        remedy = {name.lower(): "which the dataset has of its own; rename the property" for name in names}
        remedy[names[0].lower()] = "which has the text of the response; set response_column"
        return remedy


class ReuseArguments(ContractModel):
    """Which responses are not paid for again."""

    reuse: FolderLocation | None = None
    reuse_max_age: Seconds | None = Field(default=None, gt=0)
    deduplicate: bool = True
    on_clear: Literal["keep", "regenerate"] = "keep"


class ReportArguments(ContractModel):
    """What the report shows; nothing of it changes what is generated.

    :param report_samples: rows with prompt and answer; with 0, content of rows is in the dataset, its dead
        letters and error files alone: neither in the report nor in logs, events, manifest and failures.
    :param last_run: numbers of the task's last dataset, as Airflow knows them; where the destination has it,
        its manifest counts.
    """

    report_samples: int = Field(default=10, ge=0, le=100)
    last_run: LastRun | None = None

    @property
    def shows_rows(self) -> bool:
        """Whether reports, logs and failures may quote what rows hold."""
        return self.report_samples > 0
