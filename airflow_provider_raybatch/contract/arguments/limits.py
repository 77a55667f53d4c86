# SPDX-License-Identifier: Apache-2.0
"""Bounds of a job."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.durations import Seconds


class Limits(ContractModel):
    """Bounds of a job; none of them changes what is generated.

    :param deadline: epoch seconds at which the job ends itself, ``None`` for no deadline.
    """

    max_error_fraction: float | None = Field(default=None, ge=0.0, le=1.0)
    max_errors: int | None = Field(default=None, ge=0)
    max_row_attempts: int = Field(default=3, ge=1)
    max_tokens_total: int | None = Field(default=None, ge=1)
    max_gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_warm: Seconds | None = Field(default=None, ge=0, le=86400)
    flush_interval: Seconds = Field(default=10.0, gt=0)
    no_progress_timeout: Seconds = Field(default=1800.0, gt=0)
    cluster_wait: Seconds | None = Field(default=None, ge=0)
    orphan_timeout: Seconds = Field(default=6 * 3600.0, ge=0)
    deadline: float | None = None
