# SPDX-License-Identifier: Apache-2.0
"""Poll a job until it ends; `outcome` decides what each poll means."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
from airflow_provider_raybatch.cluster.jobs_api.log_text import LogTail
from airflow_provider_raybatch.cluster.jobs_api.models import TAIL_LINES, JobInfo
from airflow_provider_raybatch.cluster.jobs_api.transport import apart

_CATCH_UP_LINES = 20 * TAIL_LINES


async def observe(client: RayJobsClient, submission_id: str, state: FollowState) -> Observation:
    """Poll once. An unreachable cluster is an observation, not an exception."""
    try:
        info = await client.info(submission_id)
        if info is None:
            session_name = (await client.version()).session_name
            return Observation(at=time.time(), session_name=session_name)
    except ClusterError as error:
        return Observation(at=time.time(), error=str(error))
    try:
        # After the status: the log of a finished job is then complete.
        tail = await _end_of_log(client, info, state)
    except ClusterError:
        return Observation(at=time.time(), info=info)
    return Observation(time.time(), info, None, tuple(tail.lines), tail.asked, limited=tail.limited)


async def _end_of_log(client: RayJobsClient, info: JobInfo, state: FollowState) -> LogTail:
    """The end of the log from where the last poll ended.

    Ray gives the last lines of a file, without offsets. So the first request asks for few lines, and further
    ones for more until the lines overlap with those seen before. The last event of an ended job may lie far
    above the end, so many lines are read then.
    """
    steps = [_CATCH_UP_LINES, TAIL_LINES]
    if state.log_read and not info.status.is_terminal and state.expected_lines < TAIL_LINES:
        steps += [min(TAIL_LINES, 8 * state.expected_lines), state.expected_lines]
    before = LogTail([], 0)
    while True:
        asked = steps.pop()
        tail = await client.log_tail(info, asked)
        if tail.limited:
            return max(tail, replace(before, limited=True), key=lambda one: len(one.lines))
        if len(tail.lines) < asked or not steps:  # the whole log, or all that can be had
            return tail
        if await apart(sum(map(len, tail.lines)), partial(_is_enough, tail.lines, state, asked)):
            return tail
        before = tail


def _is_enough(lines: list[str], state: FollowState, asked: int) -> bool:
    digests = [digest(line) for line in lines]
    if asked < TAIL_LINES:
        return tells_growth(state.seen, digests, TAIL_LINES)
    return first_new(state.seen, digests, TAIL_LINES) is not None


async def poll_once(
    client: RayJobsClient,
    submission_id: str,
    state: FollowState,
    *,
    lease: Lease | None = None,
    deadline: float | None = None,
    unreachable_timeout: float = 600.0,
) -> Verdict:
    """One step of following, shared by trigger, operator and sensor: :func:`observe`, then :func:`judge`.

    :param lease: of a batch inference, renewed while the job runs; other jobs have neither a lease nor
        events.
    """
    observation = await observe(client, submission_id, state)
    judging = partial(
        judge,
        observation,
        state,
        key=None if lease is None else lease.terms.key,
        deadline=deadline,
        unreachable_timeout=unreachable_timeout,
    )
    verdict = await apart(sum(map(len, observation.tail or ())), judging)
    if lease is None or observation.info is None or observation.info.status.is_terminal:
        return verdict
    warning = await lease.renew(client)
    return (
        verdict
        if warning is None
        else replace(verdict, lines=(*verdict.lines, FollowedLine(warning, "warning")))
    )


async def follow(
    client: RayJobsClient,
    submission_id: str,
    session_name: str | None,
    *,
    poll_interval: float,
    lease: Lease | None = None,
    deadline: float | None = None,
    on_lines: Callable[[list[FollowedLine]], None],
    unreachable_timeout: float = 600.0,
    from_start: bool = True,
) -> Outcome:
    """Follow a job to its end and renew its lease; never stops the job.

    :param session_name: of the Ray session that took the job.
    :param poll_interval: seconds between two polls.
    :param lease: see :func:`poll_once`.
    :param deadline: epoch seconds; see :func:`judge`.
    :param on_lines: gets new lines of the driver's log, each once, in order; never an empty list.
    :param from_start: ``False`` for a follower that was restarted: only the last progress event of the log
        so far is emitted.
    """
    state = FollowState(session_name=session_name, from_start=from_start)
    # Followers that start together, as after a restart of the triggerer, spread over the interval.
    pause = poll_interval * random.random()
    while True:
        verdict = await poll_once(
            client,
            submission_id,
            state,
            lease=lease,
            deadline=deadline,
            unreachable_timeout=unreachable_timeout,
        )
        if verdict.lines:
            on_lines(list(verdict.lines))
        if verdict.outcome is not None:
            return verdict.outcome
        state = verdict.state
        await asyncio.sleep(pause if deadline is None else min(pause, max(0.1, deadline - time.time())))
        pause = poll_interval
