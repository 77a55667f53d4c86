# SPDX-License-Identifier: Apache-2.0
"""The numbers of the dataset before this one, for looking at both side by side."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel


class LastRun(ContractModel):
    """What a task's last dataset was like: numbers alone; ``None`` where it is not known.

    :param rows: good rows, and `errors` failed ones.
    :param seconds: the job's.
    :param input_tokens: of the delivered rows, and `output_tokens`.
    :param tokens_paid: as in the manifest, and `gpu_seconds`, `cost` and `currency`.
    :param finish_reasons: completions by finish reason.
    :param errors_by_step: failed rows by the step that failed.
    :param columns: of the dataset, name and Arrow type; ``None`` where only the numbers are known.
    :param created_at: ISO 8601, in UTC.
    """

    rows: int
    errors: int
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_paid: int | None = None
    output_tokens_per_second: float | None = None
    gpu_seconds: float | None = None
    cost: float | None = None
    currency: str | None = None
    resumed: int | None = None
    reused: int | None = None
    duplicates: int | None = None
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    errors_by_step: dict[str, int] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    created_at: str | None = None
