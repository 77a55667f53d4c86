# SPDX-License-Identifier: Apache-2.0
"""Run a preview job, and hand back what it reports."""

from __future__ import annotations

import asyncio
import time

from airflow_provider_raybatch.cluster.follow.failure_reason import reason_of
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus
from airflow_provider_raybatch.contract.events import (
    Event,
    Failed,
    Planned,
    Previewed,
    RowPreviewed,
    read_line,
)
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

_POLL = 0.5
_REPORTED = (RowPreviewed, Previewed, Planned)


async def run_preview(client: RayJobsClient, request: JobRequest, key: str, timeout: float) -> list[Event]:  # noqa: ASYNC109
    """Submit a job of :func:`~.submit.request.build_preview_request`, wait for its end, and read its events.

    A job that is not waited for any more is asked to stop.

    :param key: of the job, which signs its events.
    :param timeout: seconds that it may take.
    :returns: its rows, if any, and the last event.
    :raises RaybatchError: it failed, was stopped or takes too long.
    """
    await client.submit(request)
    try:
        info = await _ended(client, request.submission_id, timeout)
    except BaseException:
        await client.stop(request.submission_id)
        raise
    tail = await client.log_tail(info)
    signed = {found.number: found.event for line in tail.lines if (found := read_line(line, key))}
    events = [signed[number] for number in sorted(signed)]
    failed = next((event for event in events if isinstance(event, Failed)), None)
    if failed is not None:
        raise RaybatchError(failed.message, failed.failure_class)
    reported: list[Event] = [event for event in events if isinstance(event, _REPORTED)]
    if not reported or not isinstance(reported[-1], (Previewed, Planned)):
        stopped = info.status is JobStatus.STOPPED
        why = "it was stopped outside of this command" if stopped else reason_of(info, tail.lines).message
        raise RaybatchError(f"Job {request.submission_id} ended without a report: {why}")
    return reported


async def _ended(client: RayJobsClient, submission_id: str, seconds: float) -> JobInfo:
    deadline = time.monotonic() + seconds
    while True:
        info = await client.info(submission_id)
        if info is None:
            raise RaybatchError(f"Job {submission_id} is no longer known to the cluster.")
        if info.status.is_terminal:
            return info
        if time.monotonic() > deadline:
            raise RaybatchError(
                f"timeout: job {submission_id} has not reported after {seconds:g} s; raise it, or look at "
                "the job's log on the dashboard.",
                FailureClass.TIMEOUT,
            )
        await asyncio.sleep(_POLL)
