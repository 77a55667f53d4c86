# SPDX-License-Identifier: Apache-2.0
"""A driver that deletes left-overs deletes no file of a run that overtakes it meanwhile."""

from __future__ import annotations

import itertools
from pathlib import Path

from airflow_provider_raybatch.contract.run_token import new_run_token
from airflow_provider_raybatch.job.output.cleanup import collect
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import commit_only, part, rows_of
from tests.support.specs import submitted
from tests.support.stepping import Stepper

LEFT = "data/20990101T000000-0123abcd/part-00000.parquet"


def published(folder: Folder, number: int) -> tuple[Journal, list[int]]:
    """Publish a run; return its journal and the rows that its readers see."""
    spec = submitted(number, token=new_run_token(number), destination=folder.uri)
    written = part(folder, [{"id": number}], run=f"_raybatch/parts/{number}")
    journal = Journal(folder, spec.submission, take_over=False)
    journal.claim()
    manifest = commit_only(journal, [written], 1, spec)
    return journal, [row["id"] for row in rows_of(folder, manifest)]


def test_newer_run_publishes_before_each_call_of_a_collector(tmp_path: Path) -> None:
    for stops in itertools.count():
        folder = LocalFolder(str(tmp_path / str(stops)))
        journal, _ = published(folder, 1)
        folder.write(LEFT, b"left")
        older = Stepper(folder.root, lambda folder=folder, journal=journal: collect(folder, journal))
        for _ in range(stops):
            older.step()
        if older.is_done:
            break
        _, rows = published(folder, 2)
        before = {entry.path for entry in folder.list()} - {LEFT}
        older.finish()
        assert rows == [2]
        assert before <= {entry.path for entry in folder.list()}
    assert folder.head(LEFT) is None
    assert stops > 6
