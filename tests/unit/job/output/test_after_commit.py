# SPDX-License-Identifier: Apache-2.0
"""What follows a commit: copies under fixed names, and the deletion of left-overs."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.layout import NEWEST_MANIFEST
from airflow_provider_raybatch.contract.manifest import BatchManifest, JournalEntry, Published
from airflow_provider_raybatch.contract.submission import new_run_token
from airflow_provider_raybatch.job.output.after_commit import SCRATCH_AGE, collect, renew_copy, unpublished
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.storage.errors import RetryLimits, StorageError, TakenError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import Call, Fault, FaultyS3, first
from tests.support.publishing import commit_only, failure, part, publish, response, rows_of
from tests.support.s3_server import S3Server
from tests.support.specs import TASK, submitted
from tests.support.stepping import Stepper

PREEMPTIONS = 3
"""How often one of two writers takes over from the other; more take minutes."""


def in_the_journal(folder: Folder, number: int) -> Journal:
    """Commit a run that has not renewed the copy yet."""
    path = f"manifests/{number}.json"
    folder.write(path, json.dumps({"uri": f"of run {number}"}).encode())
    journal = Journal(folder, submitted(0, token=new_run_token(number)).submission, take_over=False)
    journal.claim()
    journal.commit(path)
    return journal


def copied(folder: Folder) -> int:
    """Return the number of the run whose manifest is in the copy; 0 without a copy."""
    if folder.head(NEWEST_MANIFEST) is None:
        return 0
    return int(json.loads(folder.read(NEWEST_MANIFEST))["uri"].removeprefix("of run "))


def test_a_retry_of_an_older_dataset_while_a_newer_run_commits(folder: Folder) -> None:
    """`make_ready` renews the copy for a run that has its dataset: the copy is still the journal's newest."""
    older = in_the_journal(folder, 1)
    assert copied(folder) == 0
    renew_copy(folder, older)
    assert copied(folder) == 1
    in_the_journal(folder, 2)
    renew_copy(folder, older)
    assert copied(folder) == 2


def test_a_commit_leaves_the_copy(folder: Folder) -> None:
    manifest = publish(folder, [part(folder, [{"text": "a"}])], 1)
    assert folder.read(NEWEST_MANIFEST) == folder.read(manifest.manifest_uri.removeprefix(f"{folder.uri}/"))
    assert rows_of(folder, manifest)


def test_without_a_dataset_there_is_no_copy(folder: Folder) -> None:
    journal = Journal(folder, submitted().submission, take_over=False)
    renew_copy(folder, journal)
    journal.claim()
    renew_copy(folder, journal)
    assert folder.head(NEWEST_MANIFEST) is None


@pytest.mark.parametrize(("before", "calls"), [(0, 5), (1, 7)], ids=["the first copy", "a later copy"])
def test_newer_writer_in_s3_before_each_call(
    s3_server: S3Server, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, before: int, calls: int
) -> None:
    patient = replace(errors.RETRY_LIMITS, answer=60)  # calls are counted, so a slow one may not be repeated
    monkeypatch.setattr(errors, "RETRY_LIMITS", patient)
    for stops in itertools.count():
        bucket = s3_server.new_bucket()
        direct = S3Folder(bucket, "out", s3_server.credentials)
        if before:
            renew_copy(direct, in_the_journal(direct, 1))
        through = S3Folder(bucket, "out", proxy.api.credentials)
        older = in_the_journal(through, 2)
        newer = NewerAt(stops, direct)
        proxy.choose = newer
        renew_copy(through, older)
        proxy.choose = lambda call: None
        assert copied(direct) == (3 if newer.came else 2)
        if not newer.came:
            break
    assert stops == calls


@dataclass
class NewerAt:
    """Lets a newer run commit and copy before the n-th call."""

    number: int
    folder: Folder
    calls: int = 0
    came: bool = False

    def __call__(self, call: Call) -> Fault | None:
        self.calls += 1
        if self.calls == self.number + 1:
            self.came = True
            renew_copy(self.folder, in_the_journal(self.folder, 3))
        return None


class TestReplace:
    def test_copy_needs_what_was_there(self, folder: Folder) -> None:
        folder.replace("x", None, b"1")
        with pytest.raises(TakenError):
            folder.replace("x", None, b"2")
        with pytest.raises(TakenError):
            folder.replace("x", b"0", b"2")
        assert folder.read("x") == b"1"
        folder.replace("x", b"1", b"2")
        assert folder.read("x") == b"2"
        with pytest.raises(TakenError):
            folder.replace("y", b"1", b"2")
        assert [entry.path for entry in folder.list()] == ["x"]

    def test_of_two_on_a_disk_at_most_one_succeeds(self, tmp_path: Path) -> None:
        folder, outcomes = LocalFolder(str(tmp_path)), Counter[int]()
        schedules: list[tuple[int, ...]] = [()]
        while schedules:
            schedule = schedules.pop()
            folder.write("x", b"old")
            both = [
                Stepper(folder.root, lambda new=new: folder.replace("x", b"old", new))
                for new in (b"first", b"second")
            ]
            done: list[int] = []
            preemptions = 0
            while open_ones := [number for number in (0, 1) if not both[number].is_done]:
                last = done[-1] if done and done[-1] in open_ones else open_ones[0]
                number = schedule[len(done)] if len(done) < len(schedule) else last
                if len(done) >= len(schedule) and len(open_ones) == 2 and preemptions < PREEMPTIONS:
                    schedules.append((*done, 1 - number))
                preemptions += number != last
                both[number].step()
                done.append(number)
            won = [one.succeeded(TakenError) for one in both]
            outcomes[sum(won)] += 1
            assert sum(won) < 2, done
            assert folder.read("x") == (b"first" if won[0] else b"second" if won[1] else b"old")
        assert set(outcomes) == {0, 1}  # none, if each removed the other's scratch file
        assert [path.name for path in tmp_path.iterdir()] == ["x"]

    @pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_SILENT, Fault.CONFLICT, Fault.CUT_REQUEST])
    def test_one_whose_answer_was_lost_counts(
        self, s3_server: S3Server, proxy: FaultyS3, fault: Fault
    ) -> None:
        bucket = s3_server.new_bucket()
        S3Folder(bucket, "out", s3_server.credentials).write("x", b"1")
        proxy.choose = first(fault, method="PUT")
        S3Folder(bucket, "out", proxy.api.credentials).replace("x", b"1", b"2")
        assert proxy.faults == {fault: 1}
        assert S3Folder(bucket, "out", s3_server.credentials).read("x") == b"2"

    def test_a_disk_that_fails_is_a_storage_error(self, tmp_path: Path) -> None:
        Path(tmp_path, "x").mkdir()
        with pytest.raises(StorageError) as caught:
            LocalFolder(str(tmp_path)).replace("x", b"1", b"2")
        assert not isinstance(caught.value, TakenError)


def test_a_copy_that_others_keep_changing_is_given_up(disk: LocalFolder) -> None:
    class Busy(LocalFolder):
        def replace(self, path: str, old: bytes | None, new: bytes) -> None:
            raise TakenError("destination: it has changed.")

    journal = in_the_journal(disk, 1)
    with pytest.raises(StorageError, match="is being changed by many jobs at once"):
        renew_copy(Busy(disk.root), journal)


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
