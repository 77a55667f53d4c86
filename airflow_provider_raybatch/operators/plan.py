# SPDX-License-Identifier: Apache-2.0
"""What is to run, and for which attempt of a task; made before anything is submitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.submission import TaskKey, key_of_job
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.operators.deadline import Deadline
from airflow_provider_raybatch.operators.run_record import RunRecord, open_run_key
from airflow_provider_raybatch.places.place import Cluster, Place, RunRef

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.contract.run_numbers import LastRun
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

DRIVER_GRACE = 30.0
"""Seconds after the deadline in which a driver may end itself before its follower gives up."""
DEFERRAL_GRACE = 300.0
"""Seconds that Airflow waits beyond what a trigger may take, so that the trigger says what went wrong."""


@dataclass(frozen=True)
class TaskRun:
    """One attempt of a task; `attempt` is its number, from 1.

    :param before: tells the numbers of the task's last dataset, as far as Airflow knows them.
    """

    task: TaskKey
    record: RunRecord
    place: Place
    deadline: Deadline
    attempt: int
    before: Callable[[], LastRun | None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def run_token(self) -> str:
        """Part of the run's submission ids."""
        return self.record.token

    @property
    def key(self) -> SubmissionKey:
        """The key of this run's jobs."""
        return self.key_of(self.run_token)

    def key_of(self, run_token: str) -> SubmissionKey:
        """The key of the jobs of any run of the task."""
        from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey

        return SubmissionKey(self.task, run_token)

    @property
    def id(self) -> RunRef:
        """This run, as its place knows it."""
        return RunRef(self.key, self.run_key)

    @property
    def earlier(self) -> list[RunRef] | None:
        """The task's earlier runs whose jobs may be there; ``None`` where they are not on record."""
        tokens = self.record.earlier
        keys = self.record.earlier_keys
        if tokens is None:
            return None
        return [RunRef(self.key_of(token), self._opened(keys.get(token))) for token in tokens]

    def handle(self, cluster: Cluster, submission_id: str, fingerprint: str | None) -> dict[str, Any]:
        """What a deferred task keeps of its job."""
        return {
            "submission_id": submission_id,
            "dashboard_url": cluster.job_page(submission_id),
            "run_token": self.run_token,
            "fingerprint": fingerprint,
            **({} if cluster.facts is None else {"ray_cluster": dict(cluster.facts)}),
        }

    @property
    def run_key(self) -> str:
        """The run's key; empty if it can't be opened."""
        return self._opened(self.record.key)

    def _opened(self, stored: str | None) -> str:
        return (stored and open_run_key(stored, self.place.secret_seal_key)) or ""

    def key_of_job(self, submission_id: str) -> str:
        """The key that one of its jobs shares with its followers.

        :raises RayConnectionError: the connection's seal key does not open the run's key.
        """
        run_key = open_run_key(self.record.key, self.place.secret_seal_key)
        if run_key is None:
            raise RayConnectionError(
                f"{self.place.name}, field secret_seal_key in extra: it does not open "
                "the key of this task's run, which another one sealed; restore it, or clear the task."
            )
        return key_of_job(run_key, submission_id)


@dataclass(frozen=True)
class JobPlan:
    """What an operator wants to run, validated.

    :param fingerprint: over everything that makes it another job when it changes.
    :param build: makes the request of a submission id, and uploads what it refers to.
    :param finished: whether an ended job has a result; by default, whether Ray says that it succeeded.
    :param lease_terms: what a follower tells its job; ``None`` for a job that doesn't listen and doesn't know
        its deadline.
    :param environment: for a private Ray; holds secrets.
    :param sizes: what a cluster that is made for the job must hold; ``None`` where that is unknown.
    :param cluster_wait: seconds that such a cluster may take to come; ``None`` for its own default.
    :param window: seconds that it may live without a follower; ``None`` for ever.
    """

    fingerprint: str
    build: Callable[[RayJobsClient, str], Awaitable[JobRequest]]
    finished: Callable[[RayJobsClient, JobInfo], Awaitable[bool]] | None = None
    lease_terms: Callable[[str], LeaseTerms | None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    sizes: BatchInferenceSpec | None = None
    cluster_wait: float | None = None
    window: float | None = None

    def followers_deadline(self, deadline: float | None) -> float | None:
        """When a follower gives up: later than the driver ends itself, which tells more about the job."""
        return None if deadline is None else deadline + (0.0 if self.lease_terms is None else DRIVER_GRACE)


def fingerprint(content: object) -> str:
    """Of plain data. Paths count by name: changed files in a local `working_dir` make no other job of it."""
    return json_digest(content, default=str)
