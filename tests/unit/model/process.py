# SPDX-License-Identifier: Apache-2.0
"""One of Airflow's processes for a task, and its end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger


class Gone(BaseException):
    """The process has ended."""


class Wrong(BaseException):
    """An invariant doesn't hold; no code under test may catch it."""


@dataclass
class Process:
    """A worker's or a triggerer's process for one task.

    :param dies_at: when Airflow kills it, after a SIGTERM.
    """

    operator: RayBatchInferenceOperator | None = None
    trigger: RayJobTrigger | None = None
    dies_at: float = float("inf")
    gone: bool = False
    thread: threading.Thread | None = None
    paused: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
