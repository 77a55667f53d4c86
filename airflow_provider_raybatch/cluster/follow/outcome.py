# SPDX-License-Identifier: Apache-2.0
"""Decide what a poll of a job means: running, ended, lost or unreachable. Pure, without a client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from airflow_provider_raybatch.cluster.follow.failure_reason import reason_of
from airflow_provider_raybatch.cluster.follow.log_tail import digest, first_new, for_task_log
from airflow_provider_raybatch.cluster.jobs_api.models import TAIL_LINES, JobInfo, JobStatus
from airflow_provider_raybatch.contract.events import (
    MARKER,
    Committed,
    Failed,
    JobEvent,
    Notice,
    Progress,
    read_line,
)
from airflow_provider_raybatch.contract.failures import FailureClass, rows_kept
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.text import all_storable, clean, count_of

State = Literal["succeeded", "failed", "stopped", "lost", "deleted", "unreachable", "timeout"]
Level = Literal["info", "warning", "error"]

_POLLS_FOR_THE_END = 3
_LEAST_LINES = 8


@dataclass(frozen=True)
class FollowedLine:
    """One new line for the task's log; `text` is an event's own text where the line was one."""

    text: str
    level: Level = "info"


@dataclass(frozen=True)
class FollowState:
    """What a follower remembers between two polls.

    :param session_name: of the Ray session that took the job; ``None`` if unknown.
    :param from_start: whether the first poll shows all lines, or (after a restart of the follower) only the
        last progress.
    :param seen: digests of the last lines so far.
    :param expected_lines: how many lines the next poll asks for first.
    :param unreachable_since: epoch seconds, ``None`` while the cluster answers.
    :param polls_without_log: polls of a finished job whose log could not be read.
    :param events: how many of the job's events were seen; a line with a lower number is a copy.
    :param too_long: whether the last poll found a line at the log's end that is too long to be read.
    """

    session_name: str | None = None
    from_start: bool = True
    seen: tuple[str, ...] = ()
    expected_lines: int = TAIL_LINES
    log_read: bool = False
    unreachable_since: float | None = None
    polls_without_log: int = 0
    events: int = 0
    progress: Progress | None = None
    too_long: bool = False


@dataclass(frozen=True)
class Observation:
    """What one poll found.

    :param at: epoch seconds.
    :param info: ``None`` when the cluster doesn't know the job, or gave no answer (then `error` says why).
    :param session_name: asked only when the job is unknown.
    :param tail: the end of the log, ``None`` when it could not be read.
    :param tail_limit: how many lines were asked for.
    :param limited: see :class:`LogTail`.
    """

    at: float
    info: JobInfo | None = None
    session_name: str | None = None
    tail: tuple[str, ...] | None = None
    tail_limit: int = TAIL_LINES
    limited: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    :param failure_class: ``None`` only for ``succeeded``.
    :param summary: of the dataset, if the job committed one.
    :param info: the job as last seen; stays in this process.
    :param ended: whether the job has ended.
    """

    state: State
    failure_class: FailureClass | None
    message: str
    summary: Summary | None = None
    info: JobInfo | None = None
    ended: bool = False

    @property
    def saw_the_end(self) -> bool:
        """Whether the outcome is final: the job has ended, or the cluster no longer knows it."""
        ended = self.info is not None and self.info.status.is_terminal
        return self.ended or ended or self.state in {"succeeded", "lost", "deleted"}

    def to_json(self) -> dict[str, Any]:
        """Plain data that a database takes, for a trigger's event: only what the task needs there."""
        needed = replace(self, info=None, ended=self.saw_the_end)
        plain: dict[str, Any] = _OUTCOME.dump_python(needed, mode="json", exclude={"info"})
        return all_storable(plain)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """The reverse of :meth:`to_json`."""
        return _OUTCOME.validate_python(data)


@dataclass(frozen=True)
class Verdict:
    """What follows from a poll: `outcome` is ``None`` while the job runs."""

    state: FollowState
    lines: tuple[FollowedLine, ...] = ()
    outcome: Outcome | None = None


_OUTCOME = TypeAdapter(Outcome)
_TOO_LONG = FollowedLine(
    "[The driver's log ends in a line of more than 4 MiB, left out here with what was before it; the Ray "
    "dashboard has it. A program that shows its progress should end its lines.]"
)


def judge(
    observation: Observation,
    state: FollowState,
    *,
    key: str | None = None,
    deadline: float | None = None,
    unreachable_timeout: float = 600.0,
) -> Verdict:
    """Decide what a poll means.

    :param key: of the job, which proves that a line is an event; without it, only Ray's status counts.
    :param deadline: epoch seconds after which an unfinished job has the outcome ``timeout``.
    :param unreachable_timeout: seconds without an answer after which the outcome is ``unreachable``.
    """
    if observation.error is not None:
        return _no_answer(observation, state, deadline, unreachable_timeout)
    back: tuple[FollowedLine, ...] = ()
    if state.unreachable_since is not None:
        silent = observation.at - state.unreachable_since
        back = (FollowedLine(f"The Ray cluster answers again after {silent:.0f} s."),)
        state = replace(state, unreachable_since=None)
    info = observation.info
    if info is None:
        return Verdict(state, back, _with_rows(_gone(observation, state), state))
    lines, state = _new_lines(observation, state, key)
    lines = back + lines
    if not info.status.is_terminal:
        if deadline is not None and observation.at >= deadline:
            message = f"The job was still {info.status.value} at its deadline."
            outcome = Outcome("timeout", FailureClass.TIMEOUT, message, info=info)
            return Verdict(state, lines, _with_rows(outcome, state))
        return Verdict(state, lines)
    if observation.tail is None and state.polls_without_log + 1 < _POLLS_FOR_THE_END:
        return Verdict(replace(state, polls_without_log=state.polls_without_log + 1), lines)
    return Verdict(state, lines, _ended(info, observation.tail, key, state))


def _with_rows(outcome: Outcome, state: FollowState) -> Outcome:
    """Add how many rows are kept, for a job that could not say so itself."""
    known, failure_class = state.progress, outcome.failure_class
    if known is None or known.kept is None or failure_class is None:
        return outcome
    kept = rows_kept(known.kept, known.total, failure_class)
    return replace(outcome, message=f"{outcome.message.rstrip('.')}; {kept}.")


def _no_answer(
    observation: Observation, state: FollowState, deadline: float | None, unreachable_timeout: float
) -> Verdict:
    error, outcome = observation.error, None
    since = state.unreachable_since
    lines: tuple[FollowedLine, ...] = ()
    if since is None:
        since = observation.at
        told = f"{error} Waiting up to {unreachable_timeout:.0f} s for it; the job goes on."
        lines = (FollowedLine(told, "warning"),)
    state = replace(state, unreachable_since=since)
    silent = observation.at - since
    if silent >= unreachable_timeout:
        message = f"The Ray cluster gave no answer for {silent:.0f} s, so the job was left alone. {error}"
        outcome = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, message)
    elif deadline is not None and observation.at >= deadline:
        message = f"The deadline passed while the Ray cluster gave no answer. {error}"
        outcome = Outcome("timeout", FailureClass.TIMEOUT, message)
    return Verdict(state, lines, outcome)


def _gone(observation: Observation, state: FollowState) -> Outcome:
    if observation.session_name is not None and observation.session_name == state.session_name:
        message = "The job was deleted from the Ray cluster; how it ended is unknown."
        return Outcome("deleted", FailureClass.CANCELLED, message)
    message = (
        f"The Ray cluster lost the job: its head restarted (session {state.session_name or 'unknown'} is now "
        f"{observation.session_name or 'unknown'})."
    )
    return Outcome("lost", FailureClass.CLUSTER_LOST, message)


def _ended(info: JobInfo, tail: tuple[str, ...] | None, key: str | None, state: FollowState) -> Outcome:
    # If the log can't be read, Ray's message still has its last ten lines.
    lines = tail if tail is not None else tuple(info.message.splitlines())
    signed = (read_line(line, key) for line in reversed(lines))
    told = [found.event for found in signed if found and isinstance(found.event, (Failed, Committed))]
    committed = next((event for event in told if isinstance(event, Committed)), None)
    if committed is not None:
        # A `committed` event is final, even if the driver fails later.
        return Outcome("succeeded", None, committed.text(), committed.summary, info)
    if info.status is JobStatus.SUCCEEDED:
        return Outcome("succeeded", None, "The job finished successfully.", None, info)
    last = next((event for event in told if isinstance(event, Failed)), None)
    # A stop may reach a driver that is ending itself at its deadline; the driver's own event says why.
    if info.status is JobStatus.STOPPED and (last is None or last.failure_class is not FailureClass.TIMEOUT):
        stopped = last is not None and last.failure_class is FailureClass.CANCELLED
        message = last.message if last and stopped else "The job was stopped outside of this task."
        outcome = Outcome("stopped", FailureClass.CANCELLED, message, None, info)
        return outcome if stopped else _with_rows(outcome, state)
    if last is None:
        why = reason_of(info, lines)
        return _with_rows(Outcome("failed", why.failure_class, why.message, None, info), state)
    return Outcome("failed", last.failure_class, last.message, None, info)


def _new_lines(
    observation: Observation, state: FollowState, key: str | None
) -> tuple[tuple[FollowedLine, ...], FollowState]:
    tail = observation.tail
    if tail is None:
        return (), state
    if observation.limited and not tail:
        # The next lines don't overlap with those before, which is then told as a gap.
        told = () if state.too_long else (_TOO_LONG,)
        return told, replace(state, too_long=True, log_read=True, expected_lines=1)
    digests = tuple(digest(line) for line in tail)
    start = first_new(state.seen, digests, TAIL_LINES)
    new, skipped = _shown(observation, tail, state, start, key)
    added = digests if start is None or not state.log_read else digests[start:]
    known = () if start is None else state.seen
    # The length of the log at the first poll says nothing about how fast it grows.
    expected = min(TAIL_LINES, _LEAST_LINES + 2 * len(added)) if state.log_read else 8 * _LEAST_LINES
    if observation.limited:
        expected = min(expected, 2 * observation.tail_limit)
    followed, count, progress = _followed(new, key, state.events)
    if skipped:
        note = FollowedLine(f"[{skipped} of the driver's log left out here; the Ray dashboard has them.]")
        followed = (note, *followed)
    return followed, replace(
        state,
        seen=(known + added)[-TAIL_LINES:] if added else state.seen,
        expected_lines=expected,
        log_read=True,
        events=count,
        progress=progress or state.progress,
        too_long=False,
    )


def _shown(
    observation: Observation, tail: tuple[str, ...], state: FollowState, start: int | None, key: str | None
) -> tuple[tuple[str, ...], str]:
    """The lines to show, and which ones are left out."""
    if not state.log_read and not state.from_start:
        return _last_progress(tail, key), ""
    skipped = f"More than {count_of(len(tail), 'line')}" if start is None else ""
    new = tail[start:]
    if start is not None and not state.seen and len(tail) >= observation.tail_limit:
        skipped = "Earlier lines"
    early, new = new[:-TAIL_LINES], new[-TAIL_LINES:]
    kept = tuple(line for line in early if MARKER in line)
    if len(early) > len(kept):
        skipped = skipped or count_of(len(early) - len(kept), "line")
    return kept + new, skipped


def _last_progress(tail: tuple[str, ...], key: str | None) -> tuple[str, ...]:
    for line in reversed(tail):
        found = read_line(line, key)
        if found is not None and isinstance(found.event, Progress):
            return (line,)
    return ()


def _followed(
    lines: tuple[str, ...], key: str | None, seen: int
) -> tuple[tuple[FollowedLine, ...], int, Progress | None]:
    """The lines for the task's log, the number of the job's events seen so far, and the latest progress."""
    followed, progress = [], None
    for line in lines:
        found = read_line(line, key)
        if found is None:
            text = for_task_log(line, batch=key is not None)
            if text is not None:
                followed.append(FollowedLine(text))
        elif found.number >= seen:  # else it was shown before, and this is a copy
            seen = found.number + 1
            followed.append(FollowedLine(clean(found.event.timed_text()), _level(found.event)))
            progress = found.event if isinstance(found.event, Progress) else progress
    return tuple(followed), seen, progress


def _level(event: JobEvent) -> Level:
    if isinstance(event, Failed):
        return "error"
    return event.level if isinstance(event, Notice) else "info"
