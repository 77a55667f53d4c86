# SPDX-License-Identifier: Apache-2.0
"""What the report of a job shows."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.last_run import LastRun


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
