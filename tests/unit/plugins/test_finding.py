# SPDX-License-Identifier: Apache-2.0
"""Which documents at a destination count as the report of a task instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.layout import (
    JOURNAL,
    PARTS,
    REPORT_DATA,
    journal_entry,
    manifest_file,
    report_folder,
)
from airflow_provider_raybatch.plugins import finding
from airflow_provider_raybatch.plugins.finding import TaskOutput, find_report
from airflow_provider_raybatch.plugins.reading import (
    Destination,
    LocalDestination,
    NotShownError,
    destination_at,
)
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.report_files import COMMIT, entry, key, leave, manifest, publish, report

MINE = key()
OTHERS = (
    key(dag_id="other"),
    key(run_id="another night"),
    key(task_id="summarize"),
    key(map_index=0),
    key(namespace="another-airflow"),
)
REPORT = f"{report_folder(COMMIT)}/{REPORT_DATA}"
LATER = "20261128T010203-89abcdef"


def place(folder: Folder) -> Destination:
    credentials = folder.credentials if isinstance(folder, S3Folder) else None
    return destination_at(folder.uri, credentials, [Path(folder.uri).resolve()])


def found(folder: Folder) -> TaskOutput:
    return find_report(place(folder), [MINE])


def refusal(folder: Folder) -> str:
    with pytest.raises(NotShownError) as caught:
        found(folder)
    return str(caught.value)


def test_the_report_of_a_dataset(folder: Folder) -> None:
    publish(folder, MINE)
    seen = found(folder)
    assert seen.commit == COMMIT
    assert seen.manifest is not None
    assert seen.report is not None
    assert seen.report.rows == 3


def test_an_empty_place(folder: Folder) -> None:
    assert found(folder) == TaskOutput()


@pytest.mark.parametrize("other", OTHERS)
def test_a_dataset_of_another_task(disk: LocalFolder, other: Any) -> None:
    """Of another DAG, run, task, map index or Airflow."""
    publish(disk, other)
    leave(disk, other)
    assert found(disk) == TaskOutput()


def test_a_claim_carries_what_another_published(disk: LocalFolder) -> None:
    publish(disk, OTHERS[0])
    disk.write(journal_entry(2), entry(2, MINE, kind="claim"))
    assert found(disk) == TaskOutput()


@pytest.mark.parametrize("other", OTHERS)
def test_documents_that_name_another_task(disk: LocalFolder, other: Any) -> None:
    """An entry is not enough: whoever writes into the folder could point to other data."""
    publish(disk, MINE)
    disk.write(manifest_file(COMMIT), manifest(other))
    assert "does not name this task" in refusal(disk)
    disk.write(manifest_file(COMMIT), manifest(MINE))
    disk.write(REPORT, report(other))
    assert "does not name this task" in refusal(disk)
    disk.write(REPORT, report(MINE, submission_id="job-2"))
    assert "does not name this task" in refusal(disk)
    disk.write(REPORT, report(MINE))
    disk.write(manifest_file(COMMIT), manifest(MINE, run_token="2"))
    assert "does not name this task" in refusal(disk)


def test_a_report_without_a_dataset_of_another_task(disk: LocalFolder) -> None:
    disk.write(f"{PARTS}/{MINE.digest[:16]}/{REPORT_DATA}", report(OTHERS[0]))
    assert "does not name this task" in refusal(disk)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../secret/manifests/20261127T010203-0123abcd.json",
        "s3://other/manifests/20261127T010203-0123abcd.json",
        "http://169.254.169.254/latest/meta-data",
        "data/20261127T010203-0123abcd/part-00000.json",
        "manifests/../manifests/20261127T010203-0123abcd.json",
    ],
)
def test_an_entry_leads_to_manifests_alone(disk: LocalFolder, path: str) -> None:
    publish(disk, MINE)
    published = {"manifest": path, "run_token": "1", "fingerprint": ""}
    disk.write(journal_entry(1), entry(1, MINE, published=published))
    assert "does not name this task" in refusal(disk)


def test_the_newest_dataset_counts(disk: LocalFolder) -> None:
    publish(disk, MINE)
    publish(disk, MINE, 2, commit=LATER, rows=9)
    publish(disk, OTHERS[1], 3, commit="20261129T010203-01234567")
    seen = found(disk)
    assert seen.commit == LATER
    assert seen.report is not None
    assert seen.report.rows == 9


@pytest.mark.parametrize(("made", "state"), [("T02:00:00+00:00", "failed"), ("T00:30:00", "committed")])
def test_the_newer_of_two_reports(disk: LocalFolder, made: str, state: str) -> None:
    """A cleared task may fail after it had published; a failed attempt comes before a good one."""
    publish(disk, MINE)
    leave(disk, MINE, created_at=f"2026-11-27{made}")
    seen = found(disk).report
    assert seen is not None
    assert seen.state == state


def test_a_time_that_is_none_counts_as_the_oldest(disk: LocalFolder) -> None:
    publish(disk, MINE, created_at="yesterday")
    leave(disk, MINE)
    seen = found(disk).report
    assert seen is not None
    assert seen.state == "failed"


def test_a_job_without_a_dataset(folder: Folder) -> None:
    leave(folder, MINE)
    seen = found(folder)
    assert seen.manifest is None
    assert seen.report is not None
    assert seen.report.failure == "the engine died"


def test_a_dataset_without_a_report(disk: LocalFolder) -> None:
    publish(disk, MINE)
    disk.delete([REPORT])
    seen = found(disk)
    assert seen.report is None
    assert seen.manifest is not None
    disk.delete([manifest_file(COMMIT)])
    assert "manifest of the task's dataset is gone" in refusal(disk)


def test_any_of_several_namespaces(disk: LocalFolder) -> None:
    publish(disk, MINE)
    seen = find_report(place(disk), [key(namespace="team-a"), MINE])
    assert seen.report is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        report(MINE, schema_version=2),
        report(MINE, unknown_field=1),
        report(MINE, rows="9" * 5000),
        report(MINE, samples=[{"ordinal": 0, "request": 5}]),
    ],
    ids=["empty", "text", "bytes", "deep list", "deep dictionary", "newer", "foreign", "huge number", "type"],
)
def test_a_broken_report_is_one_sentence(disk: LocalFolder, content: bytes) -> None:
    publish(disk, MINE)
    disk.write(REPORT, content)
    said = refusal(disk)
    assert said.startswith(REPORT)
    assert "\n" not in said
    assert len(said) < 600


def test_broken_entries_and_manifests(disk: LocalFolder) -> None:
    publish(disk, MINE)
    disk.write(manifest_file(COMMIT), b"{}")
    assert "not a manifest" in refusal(disk)
    disk.write(journal_entry(2), b"{}")
    assert "not an entry of a journal" in refusal(disk)


def test_each_file_has_a_bound(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, MINE)
    for name, path in (("REPORT_BYTES", REPORT), ("MANIFEST_BYTES", manifest_file(COMMIT))):
        with monkeypatch.context() as patch:
            patch.setattr(finding, name, 64)
            said = refusal(folder)
        assert path in said
        assert "larger than" in said
    monkeypatch.setattr(finding, "ENTRY_BYTES", 64)
    assert "larger than" in refusal(folder)


def test_a_large_file_is_not_read_whole(disk: LocalFolder) -> None:
    """A sparse file of 1 TiB has to be refused before it fills the memory."""
    publish(disk, MINE)
    with (Path(disk.uri) / REPORT).open("r+b") as file:
        file.truncate(2**40)
    assert "larger than the 8 MiB" in refusal(disk)


def test_a_journal_has_a_bound(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, MINE)
    for number in range(2, 8):
        folder.write(journal_entry(number), entry(number, OTHERS[1]))
    assert found(folder).manifest is not None
    monkeypatch.setattr(finding, "MOST_READ", 6)
    assert found(folder) == TaskOutput()
    monkeypatch.setattr(finding, "MOST_ENTRIES", 6)
    assert "more files than the 6" in refusal(folder)


def test_other_files_of_a_journal(disk: LocalFolder) -> None:
    publish(disk, MINE)
    for name in ("note.txt", "99999999.json~", "x.json"):
        disk.write(f"{JOURNAL}/{name}", b"anything")
    assert found(disk).manifest is not None


def test_an_entry_that_is_another_ones_copy(disk: LocalFolder) -> None:
    publish(disk, MINE)
    disk.write(journal_entry(2), json.dumps(json.loads(entry(1, MINE))).encode())
    assert "it is a copy" in refusal(disk)


def test_a_folder_in_place_of_a_file(disk: LocalFolder) -> None:
    publish(disk, MINE)
    disk.delete([REPORT])
    Path(disk.uri, REPORT).mkdir()
    assert "it can't be read" in refusal(disk) or "not a file" in refusal(disk)
    outside = LocalDestination(Path(disk.uri), [Path("/nowhere")])
    with pytest.raises(NotShownError, match="report_roots"):
        find_report(outside, [MINE])
