# SPDX-License-Identifier: Apache-2.0
"""Poll a job until it ends; `outcome` decides what each poll means."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from airflow_provider_raybatch.cluster.follow.control import Lease
from airflow_provider_raybatch.cluster.follow.log_tail import digest, first_new, tells_growth
from airflow_provider_raybatch.cluster.follow.outcome import (
    FollowedLine,
    FollowState,
    Observation,
    Outcome,
    Verdict,
    judge,
)
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.jobs_api.models import TAIL_LINES, JobInfo, LogTail
from airflow_provider_raybatch.cluster.jobs_api.transport import in_thread_if_large

_CATCH_UP_LINES = 20 * TAIL_LINES
_LONGEST_PAUSE = 60.0
_POLLS_A_LEASE = 3
_LOGS_OF_A_BUSY_HEAD = 0.1
"""Share of the polls with which a log that is due is read. By chance, so that logs don't come together."""
_MOST_QUIET = 3
"""How often the pause between reads of a log is doubled that has not grown."""


class Host(Protocol):
    """A cluster that tasks have made: for one job, or to share it."""

    async def looked(self, verdict: Verdict) -> Verdict:
        """Keep the cluster while its job runs, and say what has become of it where the job gives no answer.

        Never raises: what keeps the cluster may give no answer either.

        :param verdict: of the look at the job.
        """


@dataclass(frozen=True)
class Followed:
    """A job and how it is to be followed.

    :param session_name: the Ray session that took the job; ``None`` if unknown.
    :param poll_interval: seconds between two polls, or more; see :class:`Pace`.
    :param deadline: epoch seconds at which an unfinished job is given up.
    :param stop_at_deadline: whether it is stopped then.
    :param unreachable_timeout: seconds without an answer after which it is given up.
    :param from_start: ``False`` for a follower that was restarted: of the log so far it shows only the last
        progress.
    :param lease: of a batch inference, renewed while the job runs; other jobs have neither a lease nor
        events.
    :param host: its cluster, where tasks have made that.
    """

    submission_id: str
    session_name: str | None = None
    poll_interval: float = 10.0
    deadline: float | None = None
    stop_at_deadline: bool = True
    unreachable_timeout: float = 600.0
    from_start: bool = True
    lease: Lease | None = None
    host: Host | None = None

    @property
    def longest_pause(self) -> float:
        """Seconds until the next poll that people wait for an end, and that the lease survives."""
        lease = self.lease.terms.orphan_timeout if self.lease else 0.0
        return min(_LONGEST_PAUSE, lease / _POLLS_A_LEASE) if lease else _LONGEST_PAUSE


async def _observe(client: RayJobsClient, submission_id: str, state: FollowState, log: bool) -> Observation:
    """Poll once. An unreachable cluster is an observation, not an exception."""
    try:
        info = await client.info(submission_id)
        if info is None:
            session_name = (await client.version()).session_name
            return Observation(at=time.time(), session_name=session_name)
    except ClusterError as error:
        return Observation(at=time.time(), error=str(error))
    if not (log or info.status.is_terminal):
        return Observation(at=time.time(), info=info)
    try:
        # After the status: the log of a finished job is then complete.
        tail = await _end_of_log(client, info, state)
    except ClusterError:
        return Observation(at=time.time(), info=info)
    return Observation(time.time(), info, None, tuple(tail.lines), tail.asked, limited=tail.limited)


async def _end_of_log(client: RayJobsClient, info: JobInfo, state: FollowState) -> LogTail:
    """The end of the log from where the last poll ended: more and more lines, until some were seen before.

    The last event of an ended job may lie far above the end, so many lines are read then.
    """
    limits = [_CATCH_UP_LINES, TAIL_LINES]
    if state.log_read and not info.status.is_terminal and state.expected_lines < TAIL_LINES:
        limits += [min(TAIL_LINES, 8 * state.expected_lines), state.expected_lines]
    before = LogTail([], 0)
    while True:
        asked = limits.pop()
        tail = await client.log_tail(info, asked)
        if tail.limited:
            return max(tail, replace(before, limited=True), key=lambda one: len(one.lines))
        if len(tail.lines) < asked or not limits:  # the whole log, or all that can be had
            return tail
        if await in_thread_if_large(sum(map(len, tail.lines)), partial(_is_enough, tail.lines, state, asked)):
            return tail
        before = tail


def _is_enough(lines: list[str], state: FollowState, asked: int) -> bool:
    digests = [digest(line) for line in lines]
    if asked < TAIL_LINES:
        return tells_growth(state.seen, digests, TAIL_LINES)
    return first_new(state.seen, digests, TAIL_LINES) is not None


async def poll_once(client: RayJobsClient, job: Followed, state: FollowState, *, log: bool = True) -> Verdict:
    """Poll and judge once; a lease that is due is renewed, and the job's cluster is looked after.

    :param log: whether the log of a job that runs is read, too.
    """
    verdict = await _polled(client, job, state, log)
    return verdict if job.host is None else await job.host.looked(verdict)


async def _polled(client: RayJobsClient, job: Followed, state: FollowState, log: bool) -> Verdict:
    observation = await _observe(client, job.submission_id, state, log)
    judging = partial(
        judge,
        observation,
        state,
        key=None if job.lease is None else job.lease.terms.key,
        deadline=job.deadline,
        unreachable_timeout=job.unreachable_timeout,
    )
    verdict = await in_thread_if_large(sum(map(len, observation.tail or ())), judging)
    if job.lease is None or observation.info is None or observation.info.status.is_terminal:
        return verdict
    warning = await job.lease.renew(client)
    if warning is not None:
        verdict = replace(verdict, lines=(*verdict.lines, FollowedLine(warning, "warning")))
    return verdict


async def follow(
    client: RayJobsClient, job: Followed, on_lines: Callable[[tuple[FollowedLine, ...]], None]
) -> Outcome:
    """Follow a job to its end; never stops the job.

    :param on_lines: gets new lines of the driver's log, each once, in order.
    """
    state = FollowState(session_name=job.session_name, from_start=job.from_start)
    pace, quiet, log_at = client.pace, 0, 0.0
    # Followers that start together, as after a restart of the triggerer, spread over the interval.
    share = random.random()
    with pace.following():
        while True:
            async with pace.turn(_in_time(job, job.longest_pause)) as is_busy:
                is_first = not (job.from_start or state.log_read)  # it shows no line
                has_room = is_first or not is_busy or random.random() < _LOGS_OF_A_BUSY_HEAD
                reads_log = has_room and time.monotonic() >= log_at
                verdict = await poll_once(client, job, state, log=reads_log)
            on_lines(verdict.lines)
            if verdict.outcome is not None:
                return verdict.outcome
            pause = pace.pause(job.poll_interval, job.longest_pause)
            if reads_log:
                quiet = 0 if verdict.state.seen != state.seen else min(quiet + 1, _MOST_QUIET)
                log_at = time.monotonic() + pace.log_pause(pause) * random.uniform(0.5, 1.5) * 2**quiet
            state = verdict.state
            await asyncio.sleep(_in_time(job, share * pause))
            share = random.uniform(0.9, 1.1)  # else those that waited for each other stay together


def _in_time(job: Followed, seconds: float) -> float:
    return seconds if job.deadline is None else min(seconds, max(0.1, job.deadline - time.time()))
