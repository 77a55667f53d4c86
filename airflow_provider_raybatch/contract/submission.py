# SPDX-License-Identifier: Apache-2.0
"""The task a job belongs to, the submission that runs it, the token of a run, and a destination's journal."""

from __future__ import annotations

import datetime
import re
import uuid
from typing import Literal

from pydantic import field_validator

from airflow_provider_raybatch.contract.base import ContractModel, parse_file
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import journal_entry
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


class Published(ContractModel):
    """The dataset that readers see: its manifest (relative to the destination), and the run that made it."""

    manifest: str
    run_token: str
    fingerprint: str = ""


class JournalEntry(ContractModel):
    """One line of the journal; `published` is carried on, so that the last entry tells everything.

    `nonce` makes each entry unlike any other, also that of a lost cluster's job with the same submission id.
    """

    number: int
    kind: Literal["claim", "commit"]
    owner: TaskKey
    run_token: str
    submission_id: str
    at: str
    nonce: str = ""
    published: Published | None = None

    @field_validator("at")
    @classmethod
    def _is_a_time(cls, at: str) -> str:
        try:
            datetime.datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"it must be a time in ISO 8601, but it is {at!r}") from None
        return at


_REMEDY = "restore it, remove it if it came from elsewhere, or choose another destination"


def parse_entry(content: bytes, file: str) -> JournalEntry:
    """The entry in `file`; a :class:`SpecError` names one that is broken, foreign or another's copy."""
    entry = parse_file(JournalEntry, content, file, "an entry of a journal", _REMEDY)
    if not file.endswith(journal_entry(entry.number)):
        raise SpecError(f"{file}: it holds entry {entry.number}, so it is a copy; {_REMEDY}.")
    return entry
