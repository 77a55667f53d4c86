# SPDX-License-Identifier: Apache-2.0
"""Following a job to its end, one look at a time; what a look means is decided in `judging`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_raybatch.cluster.errors import ClusterError
from airflow_provider_raybatch.cluster.jobs import RayJobsClient
from airflow_provider_raybatch.cluster.judging import (
    FollowedLine,
    FollowState,
    Observation,
    Outcome,
    Verdict,
    describe,
    judge,
)
from airflow_provider_raybatch.cluster.log_tail import digest, first_new
from airflow_provider_raybatch.cluster.models import TAIL_LINES

__all__ = [
    "FollowState",
    "FollowedLine",
    "Observation",
    "Outcome",
    "Verdict",
    "describe",
    "follow",
    "judge",
    "look",
    "observe",
]

_CATCH_UP_LINES = 20 * TAIL_LINES


async def observe(client: RayJobsClient, submission_id: str, state: FollowState) -> Observation:
    """Look once. Raises nothing that the client raises: an unreachable cluster is an observation too."""
    try:
        info = await client.info(submission_id)
        if info is None:
            session_name = (await client.version()).session_name
            return Observation(at=time.time(), session_name=session_name)
    except ClusterError as error:
        return Observation(at=time.time(), error=str(error))
    try:
        # After the state, so that the log of a finished job is read when nothing is added to it any more.
        tail, limit = await client.log_tail(info, TAIL_LINES), TAIL_LINES
        if (
            len(tail) >= TAIL_LINES
            and first_new(state.seen, [digest(line) for line in tail], TAIL_LINES) is None
        ):
            tail, limit = await client.log_tail(info, _CATCH_UP_LINES), _CATCH_UP_LINES
    except ClusterError:
        return Observation(at=time.time(), info=info)
    return Observation(at=time.time(), info=info, tail=tuple(tail), tail_limit=limit)


async def look(
    client: RayJobsClient,
    submission_id: str,
    state: FollowState,
    *,
    deadline: float | None = None,
    unreachable_timeout: float = 600.0,
) -> Verdict:
    """One step of following, shared by trigger, operator and sensor: :func:`observe`, then :func:`judge`."""
    observation = await observe(client, submission_id, state)
    return judge(observation, state, deadline=deadline, unreachable_timeout=unreachable_timeout)


async def follow(
    client: RayJobsClient,
    submission_id: str,
    session_name: str | None,
    *,
    poll_interval: float,
    deadline: float | None = None,
    on_lines: Callable[[list[FollowedLine]], None],
    unreachable_timeout: float = 600.0,
    from_start: bool = True,
) -> Outcome:
    """Follow a job to its end; the job itself is never touched.

    :param session_name: of the Ray session that took the job.
    :param poll_interval: seconds between two looks.
    :param deadline: epoch seconds; see :func:`judge`.
    :param on_lines: gets new lines of the driver's log, each once, in order; never an empty list.
    :param from_start: ``False`` for a follower that was restarted: all but the last progress is taken as told
        already.
    """
    state = FollowState(session_name=session_name, from_start=from_start)
    while True:
        verdict = await look(
            client, submission_id, state, deadline=deadline, unreachable_timeout=unreachable_timeout
        )
        if verdict.lines:
            on_lines(list(verdict.lines))
        if verdict.outcome is not None:
            return verdict.outcome
        state = verdict.state
        pause = poll_interval if deadline is None else min(poll_interval, max(0.1, deadline - time.time()))
        await asyncio.sleep(pause)
