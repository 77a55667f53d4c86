# SPDX-License-Identifier: Apache-2.0
"""The task a job belongs to, the submission that runs it, and how running jobs and followers know each other.

The run key stays on Airflow's side; the key of a submission is derived from it, and reaches the driver in a
private package. It signs what both write. What rows and prompt functions print can't be signed, so it is only
text.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from typing import Literal

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.text import json_digest

OnStaleState = Literal["replace", "adopt", "fail"]
"""What to do about a job of the same run that was submitted with other arguments."""


class TaskKey(ContractModel):
    """Which Airflow task instance a job belongs to, whatever its try number.

    :param namespace: tells apart several Airflows that share a cluster.
    """

    namespace: str = "default"
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def digest(self) -> str:
        """32 hex digits, stable across machines and Python versions."""
        return json_digest([self.namespace, self.dag_id, self.run_id, self.task_id, self.map_index])

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}"


class Submission(ContractModel):
    """Who runs this job: filled in at submission, not part of the fingerprint.

    :param run_token: names the task's current run and orders it among the task's runs; a retry keeps it, a
        clear renews it.
    :param submission_id: Ray's id of this job.
    :param secrets_package: name under which the cluster's package store holds the job's key, and credentials
        if any travel.
    """

    task: TaskKey
    run_token: str
    submission_id: str
    secrets_package: str | None = None

    @property
    def run_id(self) -> str:
        """What the ids of all submissions of the task's run begin with, up to their number."""
        return self.submission_id.rpartition("-")[0]


_NUMBERED = re.compile(r"try(\d+)-")


def new_run_token(try_number: int) -> str:
    """A token for a new run of a task.

    :param try_number: of the attempt that begins the run. Airflow counts tries in its database and never
        counts back while a DAG run exists, so a later run has a higher number, whatever the clocks say.
    """
    return f"try{try_number}-{uuid.uuid4()}"


def run_number(run_token: str) -> int:
    """What orders the runs of a task: the try that began the run; 0 for a token that names none."""
    found = _NUMBERED.match(run_token)
    return int(found.group(1)) if found else 0


STOP_GRACE_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's environment variable for the seconds between a stopped job's SIGTERM and its SIGKILL."""
STOP_GRACE = 20
"""Its value for batch inferences; Ray's own is 3. Less than the 25 s for which a killed trigger waits."""

_SIGNATURE_DIGITS = 32


def new_run_key() -> str:
    """A key for all submissions of one run, 64 hex digits."""
    return secrets.token_hex(32)


def key_of_job(run_key: str, submission_id: str) -> str:
    """The key of one submission, 64 hex digits; it tells nothing about the run key."""
    return hmac.new(bytes.fromhex(run_key), submission_id.encode(), hashlib.sha256).hexdigest()


def sign(key: str, purpose: str, content: str) -> str:
    """32 hex digits that only holders of `key` can make, and that fit no content for another purpose."""
    message = f"{purpose}\n{content}".encode()
    return hmac.new(bytes.fromhex(key), message, hashlib.sha256).hexdigest()[:_SIGNATURE_DIGITS]


def is_signed(key: str, purpose: str, content: str, signature: str) -> bool:
    """Whether `signature` is that of `content`."""
    # As bytes: compare_digest refuses texts that are not ASCII, and anything may stand in a log.
    return hmac.compare_digest(sign(key, purpose, content).encode(), signature.encode())


class FollowerCommand(ContractModel):
    """What the follower of a running job wants; the latest one replaces those before.

    :param attempt: number of the task's attempt; orders of a later attempt win.
    :param nonce: makes each order unlike all others, so that a new one is told from one that was read before.
        No clock is in it: followers on several machines may have different ones.
    :param deadline: epoch seconds at which the job ends itself; ``None`` for no deadline.
    :param orphan_timeout: seconds after the last order at which the job ends itself; 0 for never.
    """

    attempt: int
    nonce: str
    deadline: float | None = None
    orphan_timeout: float = 0.0


def order_package(key: str) -> str:
    """Name of the package under which the cluster keeps the job's latest order."""
    return f"_ray_pkg_{sign(key, 'name', 'order')}.zip"


def cleared_package(run_key: str) -> str:
    """Name of the package that tells the next attempt of a task that a user has cleared the run."""
    return f"_ray_pkg_{sign(run_key, 'name', 'cleared')}.zip"


def write_order(order: FollowerCommand, key: str) -> bytes:
    """`order` as the package's content."""
    document = order.model_dump_json()
    return f"{sign(key, 'order', document)} {document}".encode()


def read_order(content: bytes, key: str) -> FollowerCommand | None:
    """The order in a package, ``None`` for anything that is not signed with `key`."""
    signature, _, document = content.decode(errors="replace").partition(" ")
    if not is_signed(key, "order", document, signature):
        return None
    return FollowerCommand.model_validate_json(document)
