# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the Jobs API, under Ray's own names (``ray.dashboard.modules.job.common``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from airflow_provider_raybatch.contract.text import all_storable

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
