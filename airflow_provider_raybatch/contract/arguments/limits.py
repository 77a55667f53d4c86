# SPDX-License-Identifier: Apache-2.0
"""Bounds of a job."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.durations import Seconds


class Limits(ContractModel):
    """Bounds of a job. None of them changes what is generated.

    :param deadline: epoch seconds at which the job ends itself, ``None`` for no deadline.
    :param no_progress_timeout: seconds without a finished row, a generated token or a change of phase, after
        which the job fails with a diagnosis.
    :param cluster_wait: seconds to wait for nodes that are missing; by default 900 where an autoscaler may
        bring them, 300 where an earlier submission of the run had them, and else none.
    :param max_error_fraction: share of rows that may fail, 0 to 1, judged at the end and while the job runs;
        by default none may, or any share where `max_errors` is given.
    :param max_errors: how many rows may fail; where both are given, the stricter one counts.
    :param max_row_attempts: how often a row is asked that fails each time, over all submissions of the task.
    :param max_tokens_total: input and output tokens that the task may pay for, over all its submissions.
    :param max_gpu_hours: GPU hours that the replicas of one submission may hold; waiting for nodes costs
        none.
    :param keep_warm: seconds for which engines stay on the cluster after the job, with their GPUs, for the
        next task of this Airflow that wants the same; 0 takes one that waits, and ends it. By default engines
        end with their job.
    :param flush_interval: seconds that a finished row waits at most until it is written, so that it is not
        paid for again. A replica writes all that it has finished as one part.
    :param orphan_timeout: seconds after which a job that no task follows writes what is finished and ends
        itself; 0 for never.
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
