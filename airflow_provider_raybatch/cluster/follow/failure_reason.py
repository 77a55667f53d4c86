# SPDX-License-Identifier: Apache-2.0
"""Why a job failed without an event of its own: Ray's message as a failure class and a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo
from airflow_provider_raybatch.contract.events import MARKER
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import clean

_LONGEST = 600
_TELLING = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Died))\b.*")
_KILLED = re.compile(r"Killed|no message|.*exit code 137.*")
"""The shell's and Ray's own words for it, which say no more."""
_KILLED_EXIT_CODES = frozenset({-9, 137})
_TRANSIENT_SETUP = re.compile(
    r"Failed to download runtime_env file package|prematurely been deleted|[Tt]imed? ?out|[Cc]onnection|"
    r"[Tt]emporary failure|[Uu]navailable|No space left",
)
_OUTPUT = re.compile(r"^Last \d+ lines of std(?:out|err):\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
"""Of the command that installs packages, as Ray's runtime env agent shows it."""
_ASIDE = re.compile(r"\[notice\]|note:|hint:|WARNING:|ERROR: ResolutionImpossible")
_NO_RAY = re.compile(r"No module named 'ray'|\bpython[\d.]*: (?:command )?not found")
_NO_SCRIPT = re.compile(r"can't open file '([^']+)': \[Errno 2\]")

# Ray's JobErrorType (ray.dashboard.modules.job.common).
_CLASSES = {
    "RUNTIME_ENV_SETUP_FAILURE": FailureClass.USER_ERROR,
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": FailureClass.STALLED,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": FailureClass.INTERNAL,
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": FailureClass.NODE_LOST,
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": FailureClass.INTERNAL,
    "JOB_SUPERVISOR_ACTOR_DIED": FailureClass.NODE_LOST,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": FailureClass.USER_ERROR,
    "JOB_ENTRYPOINT_COMMAND_ERROR": FailureClass.INTERNAL,
}


@dataclass(frozen=True)
class Diagnosis:
    """A failure class and a message for users."""

    failure_class: FailureClass
    message: str


def reason_of(info: JobInfo, tail: Sequence[str] = ()) -> Diagnosis:
    """The reason of a FAILED job that emitted no event; `tail` is the end of its log."""
    kind, code, message = info.error_type or "", info.driver_exit_code, shortened(info.message, tail)
    failure_class = _CLASSES.get(kind, FailureClass.INTERNAL)
    if kind == "RUNTIME_ENV_SETUP_FAILURE":
        if _TRANSIENT_SETUP.search(info.message):
            failure_class = FailureClass.INTERNAL
        if said := _installer(info.message):
            return _not_installed(failure_class, said)
    if kind == "JOB_SUPERVISOR_ACTOR_START_FAILURE" and message.startswith(("TypeError", "ValueError")):
        # Ray accepts a runtime env that it can't read, and fails when it starts the actor.
        failure_class = FailureClass.USER_ERROR
    if kind == "JOB_ENTRYPOINT_COMMAND_ERROR" and code in _KILLED_EXIT_CODES:
        last = "" if _KILLED.fullmatch(message) else f"; its last line: {message.rstrip('.')}"
        told = (
            f"The driver was killed (exit code {code}), most often because its node ran out of memory{last}."
        )
        return Diagnosis(FailureClass.OUT_OF_MEMORY, told)
    if _NO_RAY.search(message) or _NO_RAY.search(info.message):
        return Diagnosis(
            FailureClass.USER_ERROR,
            "The job's command found no Python that has Ray; on the cluster's head, put the folder of the "
            "Python that runs Ray first into PATH before `ray start`, or use an image that does.",
        )
    if no_script := _NO_SCRIPT.search(message):
        return Diagnosis(
            FailureClass.USER_ERROR,
            f"The cluster has no file {no_script[1]!r}, which the job's command runs; send the folder that "
            "has it with runtime_env={'working_dir': ...}, or name a path that the cluster's head can read.",
        )
    exited = "" if code is None else f" (exit code {code})"
    return Diagnosis(failure_class, f"The job failed{exited}: {message}")


def _not_installed(failure_class: FailureClass, said: str) -> Diagnosis:
    remedy = "correct pip, uv or conda in runtime_env"
    if failure_class.retryable:
        remedy = f"a retry installs them anew; if it fails, too, {remedy}"
    told = f"runtime_env: the cluster can't install its packages: {said.rstrip('.')}; {remedy}."
    return Diagnosis(failure_class, told)


def _installer(message: str) -> str | None:
    """The last error that pip, uv or conda told, else their last line."""
    output = _OUTPUT.search(message)
    if output is None:
        return None
    lines = [line.strip() for line in output[1].splitlines()]
    lines = [line for line in lines if line and not _ASIDE.match(line)]
    errors = [line for line in lines if re.match(r"ERROR:|╰─▶|\w*Error:", line)]
    if not lines:
        return None
    last = (errors or lines)[-1]
    if last.startswith("╰─▶"):  # uv goes on in the next lines
        last = " ".join(lines[lines.index(last) :]).removeprefix("╰─▶ ")
    return _shown(last)


def shortened(message: str, tail: Sequence[str] = ()) -> str:
    """The cause: the last exception in Ray's message or in the log, else the message's last line."""
    for lines in (message.splitlines(), tail):
        found = [line.strip() for line in lines if _TELLING.match(line.strip())]
        if found:
            return _shown(found[-1])
    lines_left = [line.strip() for line in message.splitlines() if line.strip()]
    return _shown(lines_left[-1]) if lines_left else "no message"


def _shown(line: str) -> str:
    line = clean(line.partition(MARKER)[0].rstrip())  # of an event, the sentence for people
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
