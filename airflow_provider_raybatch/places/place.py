# SPDX-License-Identifier: Apache-2.0
"""What tasks ask of a place, where the clusters with their jobs are, whatever provider it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.follow.poll import Host
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey, Submitted
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.contract.submission import OnStaleState

STOP_TIMEOUT = 120.0
"""Seconds that a job has to end after a stop request."""
LEFT_AFTER_POLL = 2 / 3
"""Part of the time that a cluster may live without a follower: so much is left after each of its polls."""


@dataclass(frozen=True)
class RunRef:
    """One run of a task.

    :param secret: the run's key; empty where it can't be opened.
    """

    key: SubmissionKey
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class SubmitRequest:
    """A job that is to be submitted, or found.

    :param build: makes the request of a submission id, and uploads what it refers to; raises where the run is
        over.
    :param finished: whether an ended job has a result; by default, whether Ray says that it succeeded.
    :param on_cluster: called as soon as the cluster is known.
    :param making: called right before a cluster is made; raises where none may be made any more.
    :param sizes: what a cluster of its own must hold; ``None`` where that is unknown.
    :param cluster_wait: seconds that such a cluster may take; ``None`` for its own default.
    :param window: seconds that it may live without a follower; ``None`` for ever.
    :param deadline: epoch seconds at which the job must have ended.
    :param leave_waiting: whether the wait for it is another process's: raise :class:`NotReadyYet`.
    """

    run: RunRef
    fingerprint: str
    on_stale_state: OnStaleState
    build: Callable[[RayJobsClient, str], Awaitable[JobRequest]]
    finished: Callable[[RayJobsClient, JobInfo], Awaitable[bool]] | None
    on_cluster: Callable[[Cluster], None]
    making: Callable[[], None]
    log: Log
    sizes: BatchInferenceSpec | None = None
    cluster_wait: float | None = None
    window: float | None = None
    deadline: float | None = None
    leave_waiting: bool = False


class NotReadyYet(Exception):  # noqa: N818 - no error
    """The cluster of a job is being made, and takes no jobs yet.

    :param cluster: which will take it.
    :param submission_id: of the job.
    :param cluster_wait: seconds that it may take, since it was begun.
    """

    def __init__(self, cluster: Cluster, submission_id: str, cluster_wait: float) -> None:
        super().__init__()
        self.cluster, self.submission_id, self.cluster_wait = cluster, submission_id, cluster_wait


class Cluster:
    """A cluster that has, or gets, a job of a run. Others have started this one, and end it."""

    host: Host | None = None
    """What keeps the cluster while its job is followed; ``None`` where nothing has to."""
    ends_with_job: bool = False
    """Whether it was made for its job alone."""
    facts: Mapping[str, Any] | None = None
    """Plain data without secrets, by which a sensor finds it; ``None`` where its place is enough."""
    of_trigger: dict[str, Any] | None = None

    uid: str | None = None
    """Of a cluster that was made for its job alone."""
    address: ClusterAddress
    has_succeeded: bool = False
    """Whether its job is known to have succeeded without a question to the cluster."""

    def __init__(
        self,
        address: ClusterAddress,
        page: str | None = None,
        secrets: tuple[str, ...] = (),
        of_trigger: dict[str, Any] | None = None,
        host: Host | None = None,
    ) -> None:
        self.address, self.of_trigger, self.host = address, of_trigger, host
        self.secrets = secrets
        self._page = page

    @property
    def shown(self) -> str:
        """Where it is, as it may stand in a message."""
        return self.address.shown

    def job_page(self, submission_id: str) -> str | None:
        """The job's page in the Ray dashboard, for people; ``None`` where there is none."""
        return self._page and f"{self._page.rstrip('/')}/#/jobs/{submission_id}"

    def for_trigger(self) -> dict[str, Any] | None:
        """Plain data by which a trigger finds it, with secrets; ``None`` where the connection is enough."""
        return self.of_trigger

    async def stop(
        self,
        submission_id: str,
        log: Log,
        may_come: Callable[[], bool] = lambda: False,
        timeout: float = STOP_TIMEOUT,  # noqa: ASYNC109 - handed on to a loop that tells why it gave up
    ) -> bool:
        """Stop a job at once, wait until it has ended, and give up what was there for it alone.

        :param may_come: whether the job is still being submitted, so that the cluster may not know it yet.
        :return: whether there was something to stop.
        """
        from airflow_provider_raybatch.cluster.follow.loop import stop_at_once

        return await stop_at_once(self.address, submission_id, may_come, timeout)

    async def known_end(self, log: Log) -> Outcome | None:
        """How the job ended, where its cluster can't be asked any more; ``None`` where it can."""
        return None

    async def log_ends(self, log: Log) -> None:
        """Log how its nodes ended, where they go with the job."""

    async def release(self, log: Log) -> None:
        """Give the cluster up, whose job has ended; an error is only logged."""


@dataclass(frozen=True)
class LatestJob:
    """A job of a run, as its cluster knows it."""

    cluster: Cluster
    submission_id: str
    fingerprint: str | None


class Place(ABC):
    """Where the jobs of a task's runs are.

    Its coroutines raise ``ClusterError``.

    :param name: for messages, such as ``Connection 'ray_default'``.
    :param namespace: keeps its jobs apart from those of other Airflows; ``None`` for the installation's id.
    :param secret_seal_key: Fernet key that its nodes hold too.
    :param gpu_hour_price: of its GPUs by accelerator type, in `currency`; ``None`` where it has no prices.
    """

    name: str
    embedded: bool = False
    """Whether a task starts a private Ray for its job."""
    makes_clusters: bool = False
    """Whether each job gets a cluster of its own."""
    namespace: str | None = None
    secret_seal_key: str | None = None
    has_prices: bool = False
    """Whether it may have prices."""
    gpu_hour_price: Mapping[str, float] | None = None
    currency: str | None = None

    def fingerprint_of(self, job: str) -> str:
        """The fingerprint of a job with this one, which counts at this place."""
        return job

    @abstractmethod
    async def submit(self, request: SubmitRequest) -> Submitted:
        """Submit a job, or take the one that is there.

        :raises NotReadyYet: its cluster is being made, and `leave_waiting` is set.
        """

    @abstractmethod
    async def latest_job(self, run: RunRef) -> LatestJob | None:
        """The latest job of a run; ``None`` where there is none, or it ended with its attempt."""

    @abstractmethod
    async def cluster_of(self, run: RunRef, *, batch: bool = True) -> Cluster | None:
        """The cluster with the latest job of a run; ``None`` where that has gone.

        :param batch: whether its job writes events.
        """

    @abstractmethod
    async def stop_run(self, run: RunRef, log: Log, timeout: float = STOP_TIMEOUT) -> list[str]:  # noqa: ASYNC109 - handed on
        """Stop what a run has left, asking again while nothing answers; return what was stopped."""

    async def release_run(  # noqa: B027 - most make none
        self, run: RunRef, log: Log, uid: str | None = None, *, ended: bool = True
    ) -> None:
        """Delete what was made for the job of a run.

        :param uid: of the cluster, since a later attempt may have made the run's next one meanwhile; ``None``
            for all that the run has.
        :param ended: whether the job is over, so that nothing needs to be asked; else it is stopped first.
        """

    @abstractmethod
    async def stop_earlier(
        self, earlier: Sequence[RunRef] | None, run: RunRef, keep: str, log: Log
    ) -> list[str]:
        """Stop what earlier runs of a task have left; return what was stopped.

        :param earlier: ``None`` where they are not on record.
        :param keep: submission id of the present run's job.
        """

    @abstractmethod
    async def mark_cleared(self, run: RunRef) -> None:
        """Tell the run's next attempt that a user has cleared the task while this one ran."""

    @abstractmethod
    async def was_cleared(self, run: RunRef) -> bool:
        """Whether :meth:`mark_cleared` was called; ``False`` if that is not known."""
