# SPDX-License-Identifier: Apache-2.0
"""A job without an engine: the real journal, ledger, parts, commit and collector, in their real order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.layout import NEWEST_MANIFEST
from airflow_provider_raybatch.contract.manifest import BatchManifest, JournalEntry, RunStatistics
from airflow_provider_raybatch.contract.submission import run_number
from airflow_provider_raybatch.job.output import after_commit
from airflow_provider_raybatch.job.output.after_commit import renew_copy
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.parts.ledger import look_back
from tests.support.publishing import part, rows_of
from tests.support.specs import submitted

from .memory import Memory

ROWS = 2
RUN = "_raybatch/parts/task/run"


class Killed(BaseException):
    """Stands for SIGKILL."""


@dataclass
class World:
    """A destination and its observed history.

    :param paid: how often each row was generated.
    :param wasted: rows that a job generated although a part had them when the job began.
    :param reported: tokens of the runs whose jobs have reported a commit.
    :param jobs: number of jobs so far.
    :param copied: number of the published dataset that the copy names, from 1; 0 without a copy.
    :param commits: number of published datasets.
    """

    folder: Memory = field(default_factory=Memory)
    paid: Counter[int] = field(default_factory=Counter)
    wasted: list[int] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    jobs: int = 0
    copied: int = 0
    commits: int = 0

    def job(self, token: str) -> str:
        """Do what `run.py` does with the destination; return the manifest's uri."""
        number, self.jobs = self.jobs, self.jobs + 1
        folder = self.folder
        spec = submitted(number, token=token, destination=folder.uri, rows_per_part=1)
        journal = Journal(folder, spec.submission, False, spec.fingerprint)
        there = self._rows_there()
        if (known := journal.committed()) is not None:
            return self._report(token, known, journal)
        journal.check_owner()
        earlier = look_back(folder, RUN, ROWS)
        if (known := journal.claim()) is not None:
            return self._report(token, known, journal)
        parts = list(earlier.parts)
        for row in range(ROWS):
            if not earlier.good[row]:
                self.paid[row] += 1
                self.wasted += [row] if row in there else []
                parts.append(part(folder, [{"id": row}], first=row, submission=number))
        manifest = prepare(spec, journal, parts, ROWS, RunStatistics(), pa.schema([]), "")
        commit(journal, manifest)
        self.reported.append(token)
        after_commit.collect(folder, journal)
        return manifest.uri

    def _report(self, token: str, known: BatchManifest, journal: Journal) -> str:
        renew_copy(self.folder, journal)
        self.reported.append(token)
        return known.uri

    def _rows_there(self) -> set[int]:
        with self.folder.unstepped():
            return set(np.flatnonzero(look_back(self.folder, RUN, ROWS).good).tolist())

    def check(self) -> None:
        """Check what must hold at every instant."""
        with self.folder.unstepped():
            self._check()

    def _check(self) -> None:
        folder = self.folder
        history = Journal(folder, submitted().submission, False).history()
        assert [entry.number for entry in history] == list(range(1, len(history) + 1))
        commits = [entry.run_token for entry in history if entry.kind == "commit"]
        assert len(commits) == len(set(commits)), "a run has committed twice"
        claims = [run_number(entry.run_token) for entry in history]
        assert claims == sorted(claims), "an older run came after a newer one"
        assert set(self.reported) <= set(commits), "a reported commit is gone"
        for entry in history:
            if entry.published is not None:
                manifest = parse(BatchManifest, folder.read(entry.published.manifest))
                assert [row["id"] for row in rows_of(folder, manifest)] == list(range(ROWS))
        order = self._published(history)
        self.commits = len(order)
        copy = folder.files.get(NEWEST_MANIFEST)
        contents = [None, *(folder.files[path] for path in order)]
        assert copy in contents, "the copy names no published dataset"
        place = contents.index(copy)
        assert place >= self.copied, "the copy went back"
        self.copied = place

    @staticmethod
    def _published(history: Sequence[JournalEntry]) -> list[str]:
        return [one.published.manifest for one in history if one.kind == "commit" and one.published]

    def check_end(self) -> None:
        """Check what must hold once a job has succeeded."""
        self.check()
        assert self.copied == self.commits, "the copy is not the newest dataset"
        assert not self.wasted, "a row was generated that existed when its job began"
