# SPDX-License-Identifier: Apache-2.0
"""The task a job belongs to, the submission that runs it, and the token of a run."""

from __future__ import annotations

import re
import uuid
from typing import Literal

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.digest import json_digest

OnStaleState = Literal["replace", "adopt", "fail"]
"""What to do about a job of the same run that was submitted with other arguments."""


class TaskKey(ContractModel):
    """Which Airflow task instance a job belongs to, whatever its try number.

    :param namespace: tells apart several Airflows that share a cluster.
    """

    namespace: str = "default"
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def digest(self) -> str:
        """32 hex digits, stable across machines and Python versions."""
        return json_digest([self.namespace, self.dag_id, self.run_id, self.task_id, self.map_index])

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"


class Submission(ContractModel):
    """Who runs this job: filled in at submission, not part of the fingerprint.

    :param run_token: names the task's current run and orders it among the task's runs; a retry keeps it, a
        clear renews it.
    :param submission_id: Ray's id of this job.
    :param secrets_package: name under which the cluster's package store holds the job's key, and credentials
        if any travel.
    """

    task: TaskKey
    run_token: str
    submission_id: str
    secrets_package: str | None = None

    @property
    def run_id(self) -> str:
        """What the ids of all submissions of the task's run begin with, up to their number."""
        return self.submission_id.rpartition("-")[0]


_NUMBERED = re.compile(r"try(\d+)-")


def new_run_token(try_number: int) -> str:
    """A token for a new run of a task.

    :param try_number: of the attempt that begins the run. Airflow counts tries in its database and never
        counts back while a DAG run exists, so a later run has a higher number, whatever the clocks say.
    """
    return f"try{try_number}-{uuid.uuid4()}"


def run_number(run_token: str) -> int:
    """What orders the runs of a task: the try that began the run; 0 for a token that names none."""
    found = _NUMBERED.match(run_token)
    return int(found.group(1)) if found else 0
