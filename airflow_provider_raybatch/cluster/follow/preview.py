# SPDX-License-Identifier: Apache-2.0
"""Run a preview job, and hand back what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.failure_reason import reason_of
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus
from airflow_provider_raybatch.contract.events import (
    Event,
    Failed,
    Phase,
    Planned,
    Previewed,
    RowAnswered,
    RowPreviewed,
    read_line,
)
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.preview import ORPHAN_TIMEOUT

_POLL = 0.5
_REPORTED = (RowPreviewed, RowAnswered, Previewed, Planned)


class PreviewJob:
    """A preview job that is waited for.

    :param key: of the job, which signs its events and its lease.
    :param timeout: seconds that it may take.
    :param say: called with each sentence about what it waits for.
    """

    def __init__(
        self,
        client: RayJobsClient,
        submission_id: str,
        key: str,
        timeout: float,
        say: Callable[[str], object],
    ) -> None:
        self._client = client
        self._id = submission_id
        self._key = key
        self._timeout = timeout
        self._say = say
        self._lease = Lease(LeaseTerms(key, attempt=1, orphan_timeout=ORPHAN_TIMEOUT))
        self._told = -1
        """Number of the last event that was looked at for a sentence."""

    async def report(self) -> list[Event]:
        """Wait for its end, and read its events; see :func:`run_preview`."""
        info = await self._ended()
        tail = await self._client.log_tail(info)
        events = self._events(tail.lines)
        failed = next((event for event in events if isinstance(event, Failed)), None)
        if failed is not None:
            raise RaybatchError(failed.message, failed.failure_class)
        reported: list[Event] = [event for event in events if isinstance(event, _REPORTED)]
        if not reported or not isinstance(reported[-1], (Previewed, Planned)):
            stopped = info.status is JobStatus.STOPPED
            why = "it was stopped outside of this command" if stopped else reason_of(info, tail.lines).message
            raise RaybatchError(f"Job {self._id} ended without a report: {why}")
        return reported

    def _events(self, lines: list[str]) -> list[Event]:
        """Its own events, in their order. Says what it waits for."""
        signed = {found.number: found.event for line in lines if (found := read_line(line, self._key))}
        for number in sorted(number for number in signed if number > self._told):
            event, self._told = signed[number], number
            if isinstance(event, Phase):
                self._say(event.message)
        return [signed[number] for number in sorted(signed)]

    async def _ended(self) -> JobInfo:
        deadline, waits_for = time.monotonic() + self._timeout, ""
        while True:
            info = await self._client.info(self._id)
            if info is None:
                raise RaybatchError(f"Job {self._id} is no longer known to the cluster.")
            if info.status.is_terminal:
                return info
            if time.monotonic() > deadline:
                raise RaybatchError(
                    f"timeout: job {self._id} has not reported after {self._timeout:g} s; raise it, or look "
                    "at the job's log on the dashboard.",
                    FailureClass.TIMEOUT,
                )
            await self._lease.renew(self._client)
            if info.status is JobStatus.PENDING and info.message != waits_for:
                self._say(f"the cluster has queued job {self._id}: {info.message}")
                waits_for = info.message
            if info.status is JobStatus.RUNNING:
                with contextlib.suppress(ClusterError):  # what it says meanwhile is no more than comfort
                    self._events((await self._client.log_tail(info)).lines)
            await asyncio.sleep(_POLL)


async def run_preview(
    client: RayJobsClient,
    request: JobRequest,
    key: str,
    timeout: float,  # noqa: ASYNC109 - handed on
    say: Callable[[str], object] = lambda sentence: None,
) -> list[Event]:
    """Submit a job of :func:`~.submit.request.build_preview_request`, wait for its end, and read its events.

    A job that is not waited for any more is asked to stop. If that can't be done, as after a kill of this
    process, it ends itself within a minute.

    :param key: of the job, which signs its events.
    :param timeout: seconds that it may take.
    :param say: called with each sentence about what it waits for.
    :returns: its rows and answers, if any, and the last event.
    :raises RaybatchError: it failed, was stopped or takes too long.
    """
    say(f"submitting job {request.submission_id} to {client.address.shown}")
    await client.submit(request)
    try:
        return await PreviewJob(client, request.submission_id, key, timeout, say).report()
    except BaseException:
        with contextlib.suppress(ClusterError):
            await client.stop(request.submission_id)
        raise
