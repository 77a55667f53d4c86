# SPDX-License-Identifier: Apache-2.0
"""What the report of a job shows."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.last_run import LastRun


class ReportArguments(ContractModel):
    """What the report shows; nothing of it changes what is generated.

    :param report_samples: rows with prompt and answer; 0 leaves all content of rows out.
    :param last_run: numbers of the task's last dataset, as Airflow knows them; where the destination has it,
        its manifest counts.
    """

    report_samples: int = Field(default=10, ge=0, le=100)
    last_run: LastRun | None = None
