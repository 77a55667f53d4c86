# SPDX-License-Identifier: Apache-2.0
"""Files on a disk survive a power loss: their contents, names and folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.output.after_commit import renew_copy
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage import local_files
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.stream import write_stream
from tests.support.powerless import Unsynced, traced
from tests.support.publishing import failure, part, publish, response
from tests.support.specs import submitted


class Killed(BaseException):
    """Stands for a SIGKILL."""


@pytest.fixture
def trace(disk: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unsynced]:
    with traced(Path(disk.root), monkeypatch) as trace:
        yield trace
    assert trace.named_hollow == set()


def test_each_way_of_writing(disk: LocalFolder, trace: Unsynced) -> None:
    disk.write("a/b/written", b"1")
    assert trace.lost() == []
    disk.create("a/c/created", b"1")
    assert trace.lost() == []
    disk.replace("a/b/written", b"1", b"2")
    assert trace.lost() == []
    with write_stream(disk, "a/d/streamed") as stream:
        stream.write(b"1")
    assert trace.lost() == []


def test_a_whole_dataset(disk: LocalFolder, trace: Unsynced) -> None:
    manifest = publish(disk, [part(disk, [{"id": 1}, {"id": 2}], [response(), failure()])], 2)
    assert manifest.counts.error == 1
    assert trace.lost() == []


def test_folders_that_a_dead_process_made(disk: LocalFolder, trace: Unsynced) -> None:
    Path(disk.root, "a/b").mkdir(parents=True)
    assert trace.lost() == ["out", "out/a", "out/a/b"]
    disk.write("a/b/c", b"1")
    assert trace.lost() == []


def test_folders_that_were_removed_and_made_again(disk: LocalFolder, trace: Unsynced) -> None:
    disk.write("a/b/c", b"1")
    disk.delete(["a"])
    disk.write("a/b/c", b"1")
    assert trace.lost() == []


def dies_before_the_sync_of(trace: Unsynced, disk: LocalFolder, name: str) -> None:
    """Kill a job after it has named a file and before it has synced the name."""
    named = Path(disk.root, name)

    def kill(call: str, path: Path) -> None:
        if call == "fsync" and path == named.parent and named.exists():
            raise Killed

    trace.before = kill
    with pytest.raises(Killed):
        publish(disk, [part(disk, [{"id": 1}])], 1)
    assert trace.lost() == [f"out/{name}"]
    trace.before = lambda call, path: None


def test_commit_reported_by_another_process_is_synced(disk: LocalFolder, trace: Unsynced) -> None:
    """A kill comes between the journal's entry and its sync; the retry that reports the dataset syncs it."""
    dies_before_the_sync_of(trace, disk, "_raybatch/journal/00000002.json")
    again = submitted(1, destination=disk.root)
    journal = Journal(disk, again.submission, take_over=False, fingerprint=again.fingerprint)
    assert journal.committed() is not None
    assert trace.lost() == []


def test_a_copy_whose_writer_died_before_its_sync(disk: LocalFolder, trace: Unsynced) -> None:
    dies_before_the_sync_of(trace, disk, "manifest.json")
    renew_copy(disk, Journal(disk, submitted(1).submission, take_over=False))
    assert trace.lost() == []


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_without_folder_syncs(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    fsync = os.fsync

    def refuse(file: int) -> None:
        if Path(f"/proc/self/fd/{file}").resolve().is_dir():
            raise OSError(number, os.strerror(number))
        fsync(file)

    monkeypatch.setattr(os, "fsync", refuse)
    if fails:
        with pytest.raises(StorageError, match="Input/output error"):
            disk.write("x", b"1")
    else:
        disk.write("x", b"1")
        assert disk.read("x") == b"1"


def test_a_missing_folder_needs_no_sync(disk: LocalFolder) -> None:
    disk.sync("nowhere")
    with pytest.raises(FileNotFoundError):
        local_files.sync_folder(Path(disk.root, "nowhere"))
