# SPDX-License-Identifier: Apache-2.0
"""Follow a job, and stop it at its deadline: shared by trigger, operator and sensor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from airflow_provider_raybatch.cluster.follow.control import Lease
from airflow_provider_raybatch.cluster.follow.outcome import FollowedLine, FollowState, Outcome
from airflow_provider_raybatch.cluster.follow.poll import Followed, follow, poll_once
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobStatus
from airflow_provider_raybatch.cluster.jobs_api.sharing import shared_client
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey, latest_submission, stop_run
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

Answer = TypeVar("Answer")

_ASK_AGAIN_SECONDS = 1.0
_POSTED_SECONDS = 0.3
STOP_TIMEOUT = 120.0
"""Seconds that a job has to end after a stop request."""


class Log(Protocol):
    """The part of Airflow's task logger that is used here."""

    def info(self, event: str, *args: object) -> object:
        """Log a line."""

    def warning(self, event: str, *args: object) -> object:
        """Log a line."""

    def error(self, event: str, *args: object) -> object:
        """Log a line."""


async def follow_to_the_end(address: ClusterAddress, job: Followed, log: Log) -> Outcome:
    """Follow a job until its end, its deadline, or too long a time without an answer."""

    def write(lines: tuple[FollowedLine, ...]) -> None:
        for line in lines:
            getattr(log, line.level)("%s", line.text)

    async with shared_client(address) as client:
        if job.session_name is None:
            job = replace(job, session_name=(await client.version()).session_name)
        outcome = await follow(client, job, write)
        if outcome.state == "timeout" and job.stop_at_deadline:
            return await _stopped_at_deadline(client, job, outcome, log)
        return outcome


async def recheck(
    address: ClusterAddress, job: Followed, told: Outcome, log: Log, *, leave_to_a_retry: bool
) -> Outcome:
    """The outcome of a job whose follower ended before the job did.

    :param told: the follower's outcome, which is not final; kept if the cluster doesn't answer or doesn't
        know the job.
    :param leave_to_a_retry: whether another attempt takes over a job that still runs. If not, and the
        deadline has not passed, the job is followed from here.
    """
    async with RayJobsClient(address) as client:
        found = await _ended(client, job)
        if found is None and told.state == "timeout":
            return await _stopped_at_deadline(client, job, told, log) if job.stop_at_deadline else told
    if found is None:
        if not leave_to_a_retry:
            log.warning("%s Job %s still runs, so it is followed here.", told.message, job.submission_id)
            return await follow_to_the_end(address, job, log)
        failure_class = told.failure_class or FailureClass.INTERNAL
        if not failure_class.retryable:
            failure_class = FailureClass.INTERNAL  # the job is healthy and can be reached from here
        message = f"{told.message} The job still runs; a retry follows it."
        return replace(told, failure_class=failure_class, message=message)
    if found.state in {"unreachable", "lost"} or (told.state == "timeout" and found.state == "stopped"):
        return told
    log.info("Job %s has ended: %s", job.submission_id, found.message)
    return found


async def stop_jobs_of(
    address: ClusterAddress,
    key: SubmissionKey,
    timeout: float = STOP_TIMEOUT,  # noqa: ASYNC109 - handed on
) -> list[str]:
    """Stop the job of one run of a task, whichever of its submissions that is; return the ids of those."""
    deadline = time.monotonic() + timeout
    async with RayJobsClient(address) as client:
        stopped = await _answered(lambda: stop_run(client, key, timeout), deadline)
        return [] if stopped is None else [stopped]


async def latest_job(address: ClusterAddress, key: SubmissionKey) -> JobInfo | None:
    """The latest job of a run, ``None`` if it has none."""
    async with RayJobsClient(address) as client:
        deadline = time.monotonic() + STOP_TIMEOUT
        _, latest = await _answered(lambda: latest_submission(client, key), deadline)
        return latest


async def _answered(ask: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
    """Retry `ask` until `deadline` while the cluster, or a proxy before it, does not answer."""
    while True:
        try:
            return await ask()
        except ClusterUnreachableError:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_ASK_AGAIN_SECONDS)


async def stop_job(
    address: ClusterAddress,
    submission_id: str,
    timeout: float = STOP_TIMEOUT,  # noqa: ASYNC109 - handed on
) -> None:
    """Stop one job, and wait until it has ended."""
    async with RayJobsClient(address) as client:
        await client.stop_until_terminal(submission_id, timeout)


async def shorten_lease(address: ClusterAddress, lease: Lease) -> float:
    """Send a job the order of a kill in doubt; see :meth:`Lease.shorten`."""
    async with RayJobsClient(address) as client:
        return await lease.shorten(client)


async def stop_at_once(
    address: ClusterAddress,
    submission_id: str,
    may_come: Callable[[], bool],
    timeout: float = STOP_TIMEOUT,  # noqa: ASYNC109 - handed on
) -> bool:
    """Send a stop request first, and then wait until the job has ended.

    :param may_come: whether the job is still being submitted; then a stop of an unknown job is repeated.
    :return: whether there was something to stop.
    """
    deadline = time.monotonic() + timeout
    async with RayJobsClient(address) as client:
        while True:
            in_flight = may_come()  # before the order: the job may be there right after it
            if await _answered(lambda: client.stop(submission_id), deadline):
                await client.stop_until_terminal(submission_id, deadline - time.monotonic())
                return True
            if not in_flight or time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POSTED_SECONDS)


async def _stopped_at_deadline(client: RayJobsClient, job: Followed, outcome: Outcome, log: Log) -> Outcome:
    try:
        ended = await client.stop_until_terminal(job.submission_id, STOP_TIMEOUT)
    except RaybatchError as error:
        log.error("%s", error)
        return replace(outcome, message=f"{outcome.message} It could not be stopped: {error}")
    # It may have ended by itself, or published, between the last poll and the stop request.
    finished = await _ended(client, job)
    if finished is not None and finished.state in {"succeeded", "failed"}:
        return finished
    if ended is not None and ended.status is JobStatus.SUCCEEDED:
        return outcome
    return replace(outcome, message=f"{outcome.message} It was stopped.")


async def _ended(client: RayJobsClient, job: Followed) -> Outcome | None:
    """How the job ended, ``None`` while it goes on."""
    job = replace(job, deadline=None, unreachable_timeout=STOP_TIMEOUT)
    state = FollowState(session_name=job.session_name, from_start=False)
    while True:
        verdict = await poll_once(client, job, state)
        state = verdict.state
        undecided = state.unreachable_since is not None or state.polls_without_log
        if verdict.outcome is not None or not undecided:
            return verdict.outcome
        await asyncio.sleep(_ASK_AGAIN_SECONDS)
