# SPDX-License-Identifier: Apache-2.0
"""What a driver notes of itself while it runs, so that a killed one is known by more than its parts."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.failures import FailureClass


class Moment(ContractModel):
    """One point of the course of a job.

    :param seconds: since the job's start.
    :param rows: of the input that were done.
    :param tokens_per_second: generated, and prompt tokens of answered requests, since the point before.
    :param rows_in_flight: rows in engines.
    :param replicas: with a ready engine.
    """

    seconds: float
    rows: int = 0
    tokens_per_second: float = 0.0
    rows_in_flight: int = 0
    replicas: int = 0


class JobRecord(ContractModel):
    """A driver's note, renewed every half minute and at its end.

    :param run_token: of the run it worked for, as in the manifest.
    :param began: epoch seconds of the job's start; `at` of this note.
    :param total: rows of the input; ``None`` before it was read. `done` and `errors` are of the progress.
    :param gpu_seconds_by_type: GPUs times seconds that its replicas held, by Ray's accelerator type.
    :param gpu_hour_price: as in the job's spec, and `currency`.
    :param phases: seconds of its start-up, as in the manifest's timing.
    :param course: at most some hundreds of points; neighbours are merged as it grows.
    :param content: whether a report of it may show what rows hold.
    :param failure: one sentence, and its class; ``None`` while it runs, and where it was killed.
    """

    run_token: str
    submission_id: str
    began: float
    at: float
    total: int | None = None
    done: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    gpu_seconds_by_type: dict[str, float] = Field(default_factory=dict)
    gpu_hour_price: dict[str, float] = Field(default_factory=dict)
    currency: str | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    course: list[Moment] = Field(default_factory=list)
    content: bool = True
    failure: str | None = None
    failure_class: FailureClass | None = None
