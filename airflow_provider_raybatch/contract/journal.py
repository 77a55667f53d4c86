# SPDX-License-Identifier: Apache-2.0
"""A line of a destination's journal: who has claimed it, and which dataset is published there.

Written by :mod:`airflow_provider_raybatch.job.output.journal`; read also where a source is such a folder.
"""

from __future__ import annotations

from typing import Literal

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.submission import TaskKey


class Published(ContractModel):
    """The dataset that readers see: its manifest (relative to the destination), and the run that made it.

    :param fingerprint: of the arguments that it was made with.
    """

    manifest: str
    run_token: str
    fingerprint: str = ""


class JournalEntry(ContractModel):
    """One line of the journal; `published` is carried on, so that the last entry tells everything.

    `nonce` makes each entry unlike any other, also that of a second process with the same submission id (a
    cluster that was lost and is still alive, and its successor).
    """

    number: int
    kind: Literal["claim", "commit"]
    owner: TaskKey
    run_token: str
    submission_id: str
    at: str
    nonce: str = ""
    published: Published | None = None
