# SPDX-License-Identifier: Apache-2.0
"""Left-overs of dead submissions are deleted; files that may be read, and the user's files, never."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.submission import JournalEntry, Published
from airflow_provider_raybatch.job.output.after_commit import SCRATCH_AGE, collect, unpublished
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.errors import RetryLimits
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import Fault, FaultyS3
from tests.support.publishing import commit_only, failure, part, response, rows_of
from tests.support.s3_server import S3Server
from tests.support.specs import TASK, submitted

LATER = "20990101T000000-0123abcd"
"""A commit that no journal names."""


def committed(folder: Folder, number: int, token: str = "token") -> tuple[Journal, BatchManifest]:
    """Publish a dataset with a dead letter; return it and the journal of its submission."""
    written = part(folder, [{"id": 1}, {"id": 2}], [response(), failure()], submission=number)
    spec = submitted(number, token=token, destination=folder.uri)
    journal = Journal(folder, spec.submission, take_over=False)
    journal.claim()
    return journal, commit_only(journal, [written], 2, spec)


def leave(folder: Folder, name: str = LATER) -> list[str]:
    """Write the files that a driver leaves if it dies before its journal entry."""
    paths = [
        f"data/{name}/part-00000.parquet",
        f"dead_letter/{name}/part-00000.jsonl",
        f"reports/{name}/report.json",
        f"reports/{name}/report.html",
        f"manifests/{name}.json",
    ]
    for path in paths:
        folder.write(path, b"left")
    return paths


def paths(folder: Folder) -> set[str]:
    return {entry.path for entry in folder.list()}


def test_an_unpublished_commit_goes_and_everything_else_stays(folder: Folder) -> None:
    _, older = committed(folder, 0)
    journal, newer = committed(folder, 1, token="cleared")
    before = paths(folder)
    left = leave(folder)
    assert collect(folder, journal) == len(left)
    assert paths(folder) == before
    for manifest in (older, newer):
        assert [row["id"] for row in rows_of(folder, manifest)] == [1]
    assert collect(folder, journal) == 0


def test_no_empty_folder_is_left_on_a_disk(disk: LocalFolder) -> None:
    journal, manifest = committed(disk, 0)
    leave(disk)
    collect(disk, journal)
    name = manifest.uri.rpartition("/")[2]
    assert [path.name for path in Path(disk.root, "data").iterdir()] == [name]
    assert [path.name for path in Path(disk.root, "dead_letter").iterdir()] == [name]


def test_files_of_the_user_stay(folder: Folder) -> None:
    journal, _ = committed(folder, 0)
    own = [
        "data/2099/x.parquet",
        f"data/{LATER}",
        f"data/{LATER}-copy/x",
        "manifests/mine.json",
        "dead_letter/x",
    ]
    for path in own:
        folder.write(path, b"mine") if path != f"data/{LATER}" else None
    before = paths(folder)
    assert collect(folder, journal) == 0
    assert paths(folder) == before


def test_old_scratch_files_go_and_new_ones_stay(disk: LocalFolder) -> None:
    journal, _ = committed(disk, 0)
    old, new, other = (
        Path(disk.root, "_raybatch/parts", name) for name in (".raybatch-old", ".raybatch-new", ".other")
    )
    for path in (old, new, other):
        path.write_bytes(b"half")
    past = time.time() - SCRATCH_AGE - 60
    for path in (old, other):
        os.utime(path, (past, past))
    assert collect(disk, journal) == 1
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_failed_deletion_does_not_fail_the_job(
    s3_server: S3Server, proxy: FaultyS3, once: RetryLimits
) -> None:
    healthy = S3Folder(s3_server.new_bucket(), "out", s3_server.credentials)
    journal, manifest = committed(healthy, 0)
    left = leave(healthy)
    proxy.choose = lambda call: Fault.ERROR_500 if call.method in {"POST", "DELETE"} else None
    assert collect(S3Folder(healthy.bucket, "out", proxy.api.credentials), journal) == 0
    assert paths(healthy) >= set(left)
    assert [row["id"] for row in rows_of(healthy, manifest)] == [1]


def test_unreadable_journal_does_not_fail_the_job(folder: Folder) -> None:
    journal, _ = committed(folder, 0)
    left = leave(folder)
    folder.write("_raybatch/journal/00000001.json", b"torn")
    assert collect(folder, journal) == 0
    assert paths(folder) >= set(left)


class TestDecision:
    FILES = (f"data/{LATER}/x", f"manifests/{LATER}.json")

    def entry(
        self, number: int, kind: Any = "commit", published: str | None = None, at: str = "2026-01-02"
    ) -> JournalEntry:
        return JournalEntry(
            number=number,
            kind=kind,
            owner=TASK,
            run_token="token",
            submission_id="raybatch-x-0",
            at=f"{at}T03:04:05+00:00",
            published=Published(manifest=f"manifests/{published}.json", run_token="t") if published else None,
        )

    def test_what_any_entry_published_stays(self) -> None:
        other = "20260304T000000-00000000"
        history = [
            self.entry(1, "claim"),
            self.entry(2, published=LATER),
            self.entry(3, "claim", published=LATER),
            self.entry(4, published=other),
        ]
        assert unpublished([*self.FILES, f"data/{other}/x"], history) == []
        history[1:3] = [self.entry(2, published=other), self.entry(3, "claim", published=other)]
        assert unpublished([*self.FILES, f"data/{other}/x"], history) == list(self.FILES)

    def test_in_doubt_everything_stays(self) -> None:
        claim, commit = self.entry(1, "claim"), self.entry(2)
        assert unpublished(self.FILES, [claim, commit]) == list(self.FILES)
        assert unpublished(self.FILES, []) == []
        assert unpublished(self.FILES, [claim]) == []
        assert unpublished(self.FILES, [commit]) == []
        assert unpublished(self.FILES, [claim, self.entry(3)]) == []

    def test_what_is_older_than_the_journal_stays(self) -> None:
        old = ["data/20260102T030404-00000000/x"]
        assert unpublished(old, [self.entry(1, "claim"), self.entry(2)]) == []
        assert unpublished(old, [self.entry(1, "claim", at="2026-01-01"), self.entry(2)]) == old
