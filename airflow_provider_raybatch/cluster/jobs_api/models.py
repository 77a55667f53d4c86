# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the Jobs API, under Ray's own names (``ray.dashboard.modules.job.common``).

The end of a driver's log is lines of bearable length, whatever the driver writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_raybatch.contract.events import LONGEST_DOCUMENT, start_of_event
from airflow_provider_raybatch.contract.text import all_storable, count_of, storable

TAIL_LINES = 1000
"""Lines of a driver's log that one poll reads."""

_LONGEST_MESSAGE = 64 * 1024  # Ray takes 20,000 characters of a driver's log, and puts a sentence before
_ALWAYS_SENT = frozenset({"entrypoint", "submission_id", "runtime_env", "metadata"})
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class JobStatus(StrEnum):
    """Status of a job: ``PENDING`` -> ``RUNNING`` -> one of the three terminal ones."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether the status can't change any more."""
        return self in {JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED}


@dataclass(frozen=True)
class ClusterVersion:
    """Answer of ``/api/version``. `session_name` changes whenever the head starts anew."""

    ray_version: str
    session_name: str | None


@dataclass(frozen=True)
class JobRequest:
    """A job to submit, with what the node of its driver must have.

    :param entrypoint_memory: bytes.
    :param entrypoint_resources: custom resources by name.
    """

    entrypoint: str
    submission_id: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: Mapping[str, float] | None = None
    entrypoint_label_selector: Mapping[str, str] | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body; what is not set is left out, since older clusters refuse fields they don't know."""
        given = asdict(self)
        return {name: given[name] for name in given if name in _ALWAYS_SENT or given[name] not in (None, {})}


@dataclass(frozen=True)
class JobInfo:
    """A job's state on the cluster, without its runtime env, whose ``env_vars`` may hold secrets.

    :param submission_id: empty for a driver that was not submitted through the Jobs API.
    :param error_type: Ray's ``JobErrorType`` as text, such as ``JOB_ENTRYPOINT_COMMAND_ERROR``.
    :param start_time: epoch milliseconds; `end_time` too, which a job that runs does not have.
    """

    submission_id: str
    status: JobStatus
    entrypoint: str = ""
    message: str = ""
    error_type: str | None = None
    driver_exit_code: int | None = None
    driver_node_id: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> JobInfo:
        """Read a ``JobDetails`` document; an unknown status is a :class:`ValueError`."""
        answer = all_storable({name: answer.get(name) for name in cls.__dataclass_fields__})
        return cls(
            submission_id=answer.get("submission_id") or "",
            status=JobStatus(str(answer.get("status"))),
            entrypoint=answer.get("entrypoint") or "",
            message=(answer.get("message") or "")[-_LONGEST_MESSAGE:],
            error_type=answer.get("error_type"),
            driver_exit_code=answer.get("driver_exit_code"),
            driver_node_id=answer.get("driver_node_id"),
            start_time=answer.get("start_time"),
            end_time=answer.get("end_time"),
            metadata=dict(answer.get("metadata") or {}),
        )


def sanitised(submission_id: str) -> str:
    """`submission_id` with everything but letters, digits and ``._-`` replaced.

    A slash in an id leaves Ray with a record that stays PENDING and that no endpoint finds.
    """
    return _UNSAFE.sub("-", submission_id)


LONGEST_LINE = 16 * 1024
"""Bytes of a line that are kept."""


@dataclass(frozen=True)
class LogTail:
    """The last complete lines of a log.

    :param asked: how many lines the cluster was asked for in the end.
    :param limited: whether that is less than was wanted, since that many have too many bytes. If even the
        last line has, there are none.
    """

    lines: list[str]
    asked: int
    limited: bool = False


def whole_lines(content: bytes, *, last_is_whole: bool) -> list[str]:
    """`content` as lines. A last line without a line feed is still being written, unless `last_is_whole`.

    Of a progress bar, which overwrites itself by carriage returns, the last state is kept. A line of more
    than 16 KiB is cut; an event of the job at its end stays whole.
    """
    *lines, last = content.split(b"\n")
    if last and last_is_whole:
        lines.append(last)
    return [_text(line) for line in lines]


def fewer_lines(asked: int, received: bytes) -> int:
    """How many lines to ask for, 1 at least, after an answer that began with `received`."""
    if b"\n" in received[len(received) // 2 :]:
        return max(1, min(asked, received.count(b"\n")) // 2)
    # One line is too long, and there may be many below it.
    return max(1, asked // (8 if asked > 64 else 2))


def _text(line: bytes) -> str:
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    if len(line) <= LONGEST_LINE:
        return storable(line.decode(errors="replace"))
    at = start_of_event(line)
    event = b"" if at is None else line[at:]
    left = LONGEST_LINE + LONGEST_DOCUMENT - len(event)
    start = line[: max(0, min(LONGEST_LINE, left, len(line) - len(event)))]
    left_out = len(line) - len(start) - len(event)
    mark = f" [{count_of(left_out, 'more byte')} in this line] " if left_out else ""
    return storable(start.decode(errors="replace") + mark + event.decode(errors="replace"))
