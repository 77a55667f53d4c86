# SPDX-License-Identifier: Apache-2.0
"""What a driver notes of itself, on a disk and in S3, and what remains of it when the store fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import driver_folder, run_folder, task_folder
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output import record
from airflow_provider_raybatch.job.output.record import Recorder, new_record, records_of
from airflow_provider_raybatch.job.parts.ledger import look_back
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.specs import submitted
from tests.support.whole_job import attempt, dying_attempt, numbered, without_cluster

RUN = run_folder(submitted().submission, "question", "listing")
TASK = task_folder(submitted().submission)


def began(folder: Folder, number: int = 0, interval: float = 0.01) -> Recorder:
    spec, recorder, start_up = submitted(number), Recorder(interval), StartUp()
    first = new_record(spec, spec.submission, start_up.began, 20)
    recorder.begin(folder, driver_folder(RUN, first.submission_id), first, start_up)
    return recorder


def test_records_of_all_attempts_are_found_oldest_first(folder: Folder) -> None:
    for number in range(2):
        recorder = began(folder, number)
        reports = [ReplicaProgress("a", "n", "ready", 5, input_tokens=7, output_tokens=3, first_request=1.0)]
        recorder.observe(reports, Progress(done=5, total=20, errors=1), {"H100": 2.5})
        recorder.end("it broke.", FailureClass.STALLED)
    first, second = records_of(folder, TASK)
    assert [first.submission_id, second.submission_id] == ["raybatch-x-0", "raybatch-x-1"]
    assert (first.done, first.errors, first.total, first.input_tokens, first.output_tokens) == (
        5,
        1,
        20,
        7,
        3,
    )
    assert first.gpu_seconds_by_type == {"H100": 2.5}
    assert (first.failure, first.failure_class) == ("it broke.", FailureClass.STALLED)
    assert [moment.rows for moment in first.course] == [5]
    assert first.at >= first.began


def test_a_note_without_content_quotes_no_row(disk: LocalFolder) -> None:
    for content in (True, False):
        spec, recorder = submitted(int(content), report_samples=10 * content), Recorder()
        recorder.begin(disk, f"{RUN}/{content}", new_record(spec, spec.submission, 0.0, 20), StartUp())
        recorder.end("max_errors: 1 in step 'parse' (row 5: no JSON: 'My card').", FailureClass.USER_ERROR)
    with_content, without = sorted(records_of(disk, TASK), key=lambda one: not one.content)
    assert with_content.failure == "max_errors: 1 in step 'parse' (row 5: no JSON: 'My card')."
    assert without.failure == "max_errors: 1 in step 'parse' (row 5: no JSON: '...')."


def test_a_running_job_has_a_note_already(folder: Folder) -> None:
    with began(folder, interval=60) as recorder:
        while not (found := records_of(folder, TASK)):
            threading.Event().wait(0.01)
        assert found[0].failure is None
        recorder.end()


def test_broken_and_foreign_records_are_left_out(disk: LocalFolder) -> None:
    began(disk).end()
    disk.write(f"{RUN}/x~1/record.json", b"{")
    disk.write(f"{RUN}/x~2/record.json", b'{"run_token": "t", "hours": 3}')
    disk.write("_raybatch/parts/another/run/x~3/record.json", b"{}")
    assert len(records_of(disk, TASK)) == 1


class NoWrites(LocalFolder):
    """A store that takes nothing, or never answers."""

    answers = threading.Event()

    def write(self, path: str, content: object) -> None:
        self.answers.wait(60)
        raise StorageError("no")


def test_a_store_that_hangs_or_fails_holds_up_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LAST_WRITE", 0.01)
    folder = NoWrites(str(tmp_path))
    recorder = began(folder)
    recorder.end()
    folder.answers.set()
    began(folder).end()
    assert records_of(folder, TASK) == []


def test_a_ledger_knows_only_answers(disk: LocalFolder) -> None:
    began(disk).end()
    disk.write(f"{TASK}/report.json", b"{}")
    disk.write(f"{TASK}/report.html", b"")
    found = look_back(disk, RUN, 20)
    assert (found.parts, found.files) == ((), ())


def test_each_job_leaves_its_record(
    disk: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cluster(monkeypatch)
    source = numbered(tmp_path / "in.jsonl", 7)
    said = dying_attempt(disk, 0, source)
    attempt(disk, 1, source)
    failed, committed = records_of(disk, TASK)
    assert failed.failure == said
    assert (failed.failure_class, failed.total) == (FailureClass.INTERNAL, 7)
    assert (committed.failure, committed.submission_id) == (None, "raybatch-x-1")
