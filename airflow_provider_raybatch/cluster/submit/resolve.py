# SPDX-License-Identifier: Apache-2.0
"""Exactly one job for a run, even after crashes: which submission counts, and what its state implies.

Ray creates an id at most once, so two processes that submit number k of a run share one job, and a process
that died after its POST finds the job again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    ClusterError,
    ClusterUnreachableError,
    JobExistsError,
    StaleStateError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import OnStaleState, TaskKey

Answer = TypeVar("Answer")

TASK_KEY = "raybatch.task_key"
RUN_TOKEN = "raybatch.run_token"
FINGERPRINT = "raybatch.fingerprint"
JOB_NAME = "job_name"  # Ray's own key

FIRST_JOB = "the first job of this run"

_WITHOUT_RESULT = {
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "was stopped",
    JobStatus.SUCCEEDED: "succeeded, but its result is not there",
}
_MOST_SUBMISSIONS = 1000
_MOST_ROUNDS = 5
_SLUG_LENGTH = 32  # of each name; the hash keeps shortened names distinct
_POST_ATTEMPTS = 4
_POST_WAIT = 1.0
_POST_GRACE = 8.0  # less than a cancelled run_blocking is waited for


def _slug(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower())[:_SLUG_LENGTH].strip("-")


@dataclass(frozen=True)
class SubmissionKey:
    """A task instance and one run of it (a retry keeps the token, a clear renews it)."""

    task: TaskKey
    run_token: str

    def submission_id(self, k: int) -> str:
        """Ray's id of submission number `k` of this run."""
        digest = hashlib.sha256(json.dumps([self.task.digest, self.run_token]).encode()).hexdigest()[:24]
        names = filter(None, map(_slug, (self.task.dag_id, self.task.task_id)))
        return "-".join(["raybatch", *names, digest, str(k)])

    @property
    def job_name(self) -> str:
        """The task instance, for people."""
        mapped = f" [{self.task.map_index}]" if self.task.map_index >= 0 else ""
        return f"{self.task.dag_id}.{self.task.task_id}{mapped} / {self.task.run_id}"

    def metadata(self, fingerprint: str) -> dict[str, str]:
        """The job's metadata on the cluster. Ray's dashboard shows it in this order, so names come first."""
        return {
            "raybatch.dag_id": self.task.dag_id,
            "raybatch.run_id": self.task.run_id,
            "raybatch.task_id": self.task.task_id,
            "raybatch.map_index": str(self.task.map_index),
            "raybatch.namespace": self.task.namespace,
            TASK_KEY: self.task.digest,
            RUN_TOKEN: self.run_token,
            FINGERPRINT: fingerprint,
        }


class Action(Enum):
    """What to do about the latest submission of a run; a job that is taken over runs, or has finished.

    Also what to do about the latest of the clusters that a run makes for itself; only these are waited for.
    """

    SUBMIT = "submit"
    ADOPT = "adopt"
    REPLACE = "replace"
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True)
class Resolution:
    """`reason` is a clause for the log: "job x still runs"."""

    action: Action
    reason: str


@dataclass(frozen=True)
class Submitted:
    """The job that counts from here on.

    :param adopted: whether the job was there already.
    :param session_name: the Ray session that knows the job; another one later means that the head lost it.
    :param info: its state when it was submitted or found; terminal when a finished job is returned.
    """

    submission_id: str
    adopted: bool
    session_name: str | None
    info: JobInfo
    reason: str


def decide(
    latest: JobInfo | None,
    *,
    run_token: str,
    fingerprint: str,
    on_stale_state: OnStaleState = "replace",
    finished: bool = False,
) -> Resolution:
    """Decide what to do about the highest submission of a run; pure.

    :param latest: ``None`` when there is none yet.
    :param fingerprint: of the arguments that are to be submitted now.
    :param finished: whether the result of a job that has ended stands, however Ray says that it ended: a
        driver may be stopped or die after it has published.
    """
    if latest is None:
        return Resolution(Action.SUBMIT, FIRST_JOB)
    name, status = latest.submission_id, latest.status
    if latest.metadata.get(RUN_TOKEN) != run_token:
        return Resolution(Action.SUBMIT, f"job {name} is not of this run")
    if status.is_terminal and not finished:
        return Resolution(Action.SUBMIT, f"job {name} {_WITHOUT_RESULT[status]}")
    found = f"job {name} of this run {'has finished' if status.is_terminal else 'is still there'}"
    instead = Action.SUBMIT if status.is_terminal else Action.REPLACE
    return by_arguments(found, latest.metadata.get(FINGERPRINT) == fingerprint, on_stale_state, instead)


def by_arguments(found: str, same: bool, on_stale_state: OnStaleState, instead: Action) -> Resolution:
    """Decide about a job or a cluster of this run that can be taken over.

    :param found: what is there, a clause for the log.
    :param same: whether it has the arguments that are to run now.
    :param instead: what replaces it.
    """
    if same:
        return Resolution(Action.ADOPT, found)
    changed = f"{found}, with other arguments"
    match on_stale_state:
        case "adopt":
            return Resolution(Action.ADOPT, f"{changed}, and on_stale_state is 'adopt'")
        case "fail":
            return Resolution(Action.FAIL, changed)
        case "replace":
            return Resolution(instead, changed)


def stale(decision: Resolution) -> StaleStateError:
    """The error of a decision to fail."""
    return StaleStateError(
        f"on_stale_state: {decision.reason}; clear the task to run the new arguments, or set "
        "on_stale_state to 'replace' or 'adopt'."
    )


async def submit_or_adopt(
    client: RayJobsClient,
    key: SubmissionKey,
    fingerprint: str,
    build: Callable[[str], Awaitable[JobRequest]],
    on_stale_state: OnStaleState = "replace",
    finished: Callable[[JobInfo], Awaitable[bool]] | None = None,
    *,
    stop_timeout: float = 120.0,
) -> Submitted:
    """Return the one job of this run: the existing one, or a new one.

    :param build: makes the request of a submission id, if one is to be submitted.
    :param finished: whether the result of a job that has ended stands; by default, if Ray says it succeeded.
    :param stop_timeout: seconds that a job which is to be replaced has to end.
    :raises StaleStateError: there is a job with other arguments and `on_stale_state` is ``fail``.
    :raises StopTimeoutError: the job to replace doesn't end.
    """
    session_name = (await client.version()).session_name
    for _ in range(_MOST_ROUNDS):
        k, latest = await latest_submission(client, key)
        decision = decide(
            latest,
            run_token=key.run_token,
            fingerprint=fingerprint,
            on_stale_state=on_stale_state,
            finished=latest is not None and await has_result(latest, finished),
        )
        if decision.action is Action.FAIL:
            raise stale(decision)
        if latest is not None and decision.action is Action.ADOPT:
            return Submitted(latest.submission_id, True, session_name, latest, decision.reason)
        if latest is not None and decision.action is Action.REPLACE:
            await client.stop_until_terminal(latest.submission_id, stop_timeout)
        request = await build(key.submission_id(k + 1))
        info = await post(client, request, key, fingerprint)
        if info.metadata.get(RUN_TOKEN) == key.run_token and info.metadata.get(FINGERPRINT) == fingerprint:
            return Submitted(info.submission_id, False, session_name, info, decision.reason)
        # Another process took this number in between, with other arguments: decide again.
    raise JobExistsError(
        f"Another process keeps submitting jobs for {key.task} with other arguments; make sure that only "
        "one runs."
    )


async def has_result(job: JobInfo, finished: Callable[[JobInfo], Awaitable[bool]] | None) -> bool:
    """Whether the result of a job stands; `finished` is asked about a job that has ended."""
    if finished is None or not job.status.is_terminal:
        return job.status is JobStatus.SUCCEEDED
    return await finished(job)


async def stop_run(
    client: RayJobsClient,
    key: SubmissionKey,
    timeout: float = 120.0,  # noqa: ASYNC109 - handed on to a loop that tells why it gave up
) -> str | None:
    """Stop the job of a run, if it has an active one: its last submission, as all others had ended before it.

    :param timeout: seconds that the job has to end.
    :return: id of the job that was stopped.
    :raises StopTimeoutError: the job doesn't end.
    """
    _, latest = await latest_submission(client, key)
    if latest is None or latest.status.is_terminal:
        return None
    await client.stop_until_terminal(latest.submission_id, timeout)
    return latest.submission_id


async def stop_older(
    client: RayJobsClient,
    task_key_digest: str,
    keep: str,
    timeout: float = 120.0,  # noqa: ASYNC109 - handed on to a loop that tells why it gave up
) -> list[str]:
    """Stop what earlier runs of the same task left behind.

    :param keep: submission id of the job that counts. Only jobs that started before it are stopped, so that a
        late process can't end its successor's job; nothing is stopped if the cluster doesn't know it.
    :param timeout: seconds that each job has to end.
    :return: ids of the jobs that were stopped.
    :raises StopTimeoutError: a job doesn't end.
    """
    jobs = await client.jobs()
    kept = next((job for job in jobs if job.submission_id == keep), None)
    if kept is None:
        return []
    older = [
        job.submission_id
        for job in jobs
        if not job.status.is_terminal
        and job.submission_id not in {"", keep}
        and job.metadata.get(TASK_KEY) == task_key_digest
        and (job.start_time or 0) <= (kept.start_time or 0)
    ]
    for submission_id in older:
        await client.stop_until_terminal(submission_id, timeout)
    return older


async def latest_submission(client: RayJobsClient, key: SubmissionKey) -> tuple[int, JobInfo | None]:
    """Number and state of a run's last submission; -1 and ``None`` without one.

    Costs one GET more than there are submissions, however many jobs the cluster remembers.
    """
    latest: JobInfo | None = None
    for k in range(_MOST_SUBMISSIONS):
        info = await client.info(key.submission_id(k))
        if info is None:
            return k - 1, latest
        latest = info
    raise ClusterError(
        f"{key.task} has {_MOST_SUBMISSIONS} submissions in this run, so something keeps submitting; clear "
        "the task."
    )


async def post(client: RayJobsClient, request: JobRequest, key: SubmissionKey, fingerprint: str) -> JobInfo:
    """POST, and where no answer came, ask whether the job exists before the next try.

    :return: the job of this id, which another process may have submitted.
    """
    metadata = {JOB_NAME: key.job_name, **request.metadata, **key.metadata(fingerprint)}
    request = replace(request, metadata=metadata)
    failure: ClusterError | None = None
    for attempt in range(_POST_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_POST_WAIT * attempt)
        try:
            await seen_to_its_end(client.submit(request))
            failure = None
        except JobExistsError:
            failure = None
        except ClusterUnreachableError as error:
            failure = error
        info = await client.info(request.submission_id)
        if info is not None:
            return info
        if failure is None:
            raise ClusterError(
                f"Job {request.submission_id} vanished right after it was submitted to "
                f"{client.address.shown}; its head has restarted.",
                FailureClass.CLUSTER_LOST,
            )
    assert failure is not None
    raise failure


async def seen_to_its_end(request: Coroutine[Any, Any, Answer]) -> Answer:
    """Await a POST, also when cancelled: the server acts anyway, and who ends a job must find it there."""
    task = asyncio.ensure_future(request)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_POST_GRACE)
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, or asyncio logs that it never was
        raise
