# SPDX-License-Identifier: Apache-2.0
"""A client of Ray's Jobs REST API and of the few dashboard endpoints around it, and how often it may ask.

Made against Ray 2.56 to 2.60 (``ray.dashboard.modules.job.job_head``, ``...state.state_head``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Self
from urllib.parse import quote

import httpx

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AnswerTooLargeError,
    AuthenticationError,
    ClusterError,
    ClusterUnreachableError,
    JobExistsError,
    NotARayDashboardError,
    PackageTooLargeError,
    RequestRejectedError,
    StopTimeoutError,
    TlsError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import (
    TAIL_LINES,
    ClusterVersion,
    JobInfo,
    JobRequest,
    LogTail,
    fewer_lines,
    sanitised,
    whole_lines,
)
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy, Transport, in_thread_if_large
from airflow_provider_raybatch.contract.text import all_storable

_REQUESTS = 80.0
"""Requests a second of all followers together. A busy head answers 100, and others ask it, too."""
_LOGS = 0.1
"""Share of them that logs get at least; polls show how jobs end."""
_AT_ONCE = 32
"""Polls on their way: a head that answers slowly is asked no faster than it answers."""


class Pace:
    """Spreads the polls of followers that share a client.

    :ivar followers: jobs that are followed.
    """

    def __init__(self) -> None:
        self.followers = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Count a follower for the time of the block."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    @asynccontextmanager
    async def turn(self, longest: float) -> AsyncIterator[bool]:
        """Wait for a turn, at most `longest` seconds; yields whether the head keeps others waiting, too."""
        is_busy, has_turn = self._turns.locked(), False
        with suppress(TimeoutError):  # the head may hang, and the job has a deadline and a lease
            async with asyncio.timeout(longest):
                has_turn = await self._turns.acquire()
        try:
            yield is_busy
        finally:
            if has_turn:
                self._turns.release()

    def pause(self, shortest: float, longest: float) -> float:
        """Seconds between two polls of a job."""
        return max(shortest, min(longest, self.followers / (_REQUESTS * (1 - _LOGS))))

    def log_pause(self, pause: float) -> float:
        """Seconds between two reads of a job's log, by what polls each `pause` seconds leave."""
        return self.followers / max(_REQUESTS * _LOGS, _REQUESTS - self.followers / pause)


PACKAGE_LIMIT = 100 * 1024 * 1024
"""Bytes of an HTTP body that the dashboard accepts (``ray_constants.DASHBOARD_CLIENT_MAX_SIZE``)."""

LOG_LIMIT = 4 * 2**20
"""Bytes of a log that are read at a time."""
LAST_LOG_LIMIT = 4 * LOG_LIMIT
"""The same for a job that has ended, whose last event may lie far above the end."""

_STOP_AGAIN_SECONDS = 1.0


class RayJobsClient:
    """An async context manager, bound to one event loop and usable only inside `async with`.

    :raises SpecError: when entered: the CA bundle or the environment's proxy can't be used.

    Each method may raise, besides what it names itself:

    - :class:`~.errors.ClusterUnreachableError`: no answer, 5xx, or another server's answer
    (:class:`~.errors.NotARayDashboardError`), after the retries that the method allows;
    - :class:`~.errors.AuthenticationError`, :class:`~.errors.TlsError`;
    - :class:`~.errors.RequestRejectedError`: any other 4xx.

    Requests that read, stop, or put a content-hashed package are repeated a few times; a submission never is.
    """

    def __init__(self, address: ClusterAddress, *, retries: RetryPolicy | None = None) -> None:
        self.address = address
        self.pace = Pace()
        self._http = Transport(address, retries or RetryPolicy())

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.__aexit__()

    async def version(self) -> ClusterVersion:
        """Version and session of the cluster."""
        path = "api/version"
        answer = await self._document(path, await self._http.request("GET", path))
        if not isinstance(answer, dict) or not isinstance(answer.get("ray_version"), str):
            raise self._no_dashboard(path)
        answer = all_storable(answer)
        return ClusterVersion(ray_version=answer["ray_version"], session_name=answer.get("session_name"))

    async def submit(self, request: JobRequest) -> None:
        """Submit a job, without retries. If no answer comes, the job may or may not exist: ask :meth:`info`.

        :raises JobExistsError: the submission id is taken already, even if that job has ended.
        """
        if request.submission_id != sanitised(request.submission_id):
            raise RequestRejectedError(
                f"submission_id: {request.submission_id!r} has characters other than letters, digits and "
                "._-; Ray would store a job that no endpoint finds."
            )
        path = "api/jobs/"
        response = await self._http.request("POST", path, json=request.body(), repeat=False, tolerated=500)
        if response.status_code != 500:
            return
        if "already exists" in response.text:
            raise JobExistsError(
                f"The Ray cluster at {self.address.shown} holds a job {request.submission_id!r} already; ids "
                "are used once."
            )
        raise self._http.status_error(f"POST {path}", response)

    async def info(self, submission_id: str) -> JobInfo | None:
        """One job, ``None`` when the cluster doesn't know it."""
        path = _job_path(submission_id)
        response = await self._of_known("GET", path)
        return None if response is None else self._job(path, await self._document(path, response))

    async def jobs(self) -> list[JobInfo]:
        """All jobs that the cluster remembers, submitted ones and other drivers."""
        path = "api/jobs/"
        answer = await self._document(path, await self._http.request("GET", path))
        if not isinstance(answer, list):
            raise self._no_dashboard(path)
        return [self._job(path, job) for job in answer]

    async def stop(self, submission_id: str) -> bool:
        """Ask a job to stop: SIGTERM to its processes, SIGKILL after ``RAY_JOB_STOP_WAIT_TIME_S`` (3 s).

        :return: Ray's word for it; ``False`` when there was nothing to stop. On a PENDING job Ray says
            ``True`` and does nothing: see :meth:`stop_until_terminal`.
        """
        path = _job_path(submission_id) + "/stop"
        response = await self._of_known("POST", path)
        if response is None:
            return False
        answer = await self._document(path, response)
        return isinstance(answer, dict) and bool(answer.get("stopped"))

    async def stop_until_terminal(self, submission_id: str, timeout: float = 120.0) -> JobInfo | None:  # noqa: ASYNC109
        """Ask a job to stop, again and again, until it has.

        :param timeout: seconds.
        :return: the job in its terminal state, ``None`` when the cluster doesn't know it (any more).
        :raises StopTimeoutError: it is still active after `timeout`.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                info = await self.info(submission_id)
                if info is None or info.status.is_terminal:
                    return info
                if time.monotonic() >= deadline:
                    raise StopTimeoutError(
                        f"Job {submission_id} is still {info.status.value} {timeout:.0f} s after it was "
                        f"asked to stop; look at it on {self.address.shown}."
                    )
                await self.stop(submission_id)
            except ClusterUnreachableError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_STOP_AGAIN_SECONDS)

    async def log_tail(self, info: JobInfo, lines: int = TAIL_LINES) -> LogTail:
        """The last complete lines of the driver's log.

        Ray counts lines alone. Where so many have more than 4 MiB (16 MiB of a job that has ended), the
        answer is broken off, and fewer lines are asked for.
        """
        ended = info.status.is_terminal
        if info.driver_node_id is None:
            return LogTail([], lines)  # Ray names the node before it starts the driver
        params = {"node_id": info.driver_node_id, "filename": f"job-driver-{info.submission_id}.log"}
        asked, most = lines, LAST_LOG_LIMIT if ended else LOG_LIMIT
        while True:
            params["lines"] = str(asked + 1)  # the last one may be incomplete
            try:
                response = await self._http.request("GET", "api/v0/logs/file", params=params, most=most)
            except AnswerTooLargeError as error:
                if asked == 1:
                    return LogTail([], asked, limited=True)
                asked = fewer_lines(asked, error.received)
                continue
            content = response.content
            whole = await in_thread_if_large(len(content), partial(whole_lines, content, last_is_whole=ended))
            return LogTail(whole[-asked:], asked, limited=asked < lines)

    async def has_package(self, uri: str) -> bool:
        """Whether the cluster holds a package; Ray keeps it for ten more minutes from here on."""
        return await self._of_known("GET", _package_path(uri)) is not None

    async def upload_package(self, uri: str, content: bytes) -> None:
        """Put a package into the cluster's store, under a content-hashed name.

        Call :meth:`has_package` first, also for new ones: else Ray never deletes an unreferenced package.

        :raises PackageTooLargeError: it exceeds 100 MiB, or what a proxy allows.
        """
        if len(content) > PACKAGE_LIMIT:
            raise PackageTooLargeError(
                f"Package {uri} has {len(content) / 2**20:.1f} MiB, more than the {PACKAGE_LIMIT // 2**20} "
                "MiB that Ray's dashboard accepts; leave large files out of it."
            )
        await self._http.request("PUT", _package_path(uri), content=content)

    async def takes_jobs(self) -> bool:
        """Whether the head's agent is up, without which a submission is refused after ten seconds.

        ``False`` also where the state API, which tells the head's node, is off or too busy.
        """
        head = await self._head_node_id()
        if head is None:
            return False
        params = {"node_id": head, "glob": "raylet*"}
        response = await self._http.request("GET", "api/v0/logs", params=params, tolerated=500)
        return response.status_code == 200

    async def _head_node_id(self) -> str | None:
        path, params = "api/v0/nodes", {"detail": "1", "limit": "10000"}
        try:
            response = await self._http.request("GET", path, params=params)
            return _head_of(await self._document(path, response))
        except (AuthenticationError, TlsError):
            raise
        except (ClusterError, AttributeError, KeyError, TypeError):
            return None

    async def _document(self, path: str, response: httpx.Response) -> Any:
        try:
            return await in_thread_if_large(len(response.content), response.json)
        except ValueError:
            raise self._no_dashboard(path) from None

    def _job(self, path: str, answer: Any) -> JobInfo:
        try:
            return JobInfo.from_answer(answer)
        except (AttributeError, TypeError, ValueError):
            raise self._no_dashboard(path) from None

    async def _of_known(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """The answer about a job or a package, ``None`` when the cluster doesn't know it."""
        response = await self._http.request(method, path, tolerated=404, **options)
        if response.status_code != 404:
            return response
        # A proxy without its backend also answers 404; as Ray's answer it would say that a live job is gone.
        if "does not exist" in response.text:
            return None
        raise self._http.status_error(f"{method} {path}", response)

    def _no_dashboard(self, path: str) -> NotARayDashboardError:
        return NotARayDashboardError(
            f"{self.address.shown} answers, but /{path} is not what a Ray dashboard serves there; correct "
            "the url or its path prefix."
        )


def _head_of(answer: Any) -> str | None:
    nodes = answer["data"]["result"]["result"]
    heads = (node for node in nodes if node.get("state") == "ALIVE" and node.get("is_head_node"))
    return next((str(node["node_id"]) for node in heads), None)


def _job_path(submission_id: str) -> str:
    return f"api/jobs/{quote(submission_id, safe='')}"


def _package_path(uri: str) -> str:
    protocol, _, name = uri.partition("://")
    return f"api/packages/{quote(protocol, safe='')}/{quote(name, safe='')}"
