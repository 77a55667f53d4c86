# SPDX-License-Identifier: Apache-2.0
"""A line of a destination's journal: who has claimed it, and which dataset is published there.

Written by :mod:`airflow_provider_raybatch.job.output.journal`; read also where a source is such a folder.
"""

from __future__ import annotations

import datetime
from typing import Literal

from pydantic import field_validator

from airflow_provider_raybatch.contract.base import ContractModel, parse_file
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import journal_entry
from airflow_provider_raybatch.contract.submission import TaskKey


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
