# SPDX-License-Identifier: Apache-2.0
"""Names on disks survive a power loss, and files that killed processes leave are deleted."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.output.after_commit import renew_copy
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage import local_files
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.local_files import FILE, held_folder, own_prefix, sweep
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def in_another_process(end: str) -> Path:
    """Return the folder that a process held until it ended."""
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            path = held_folder()
            (path / "listener").touch()
            os.write(say, str(path).encode())
            if end == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    os.waitpid(child, 0)
    path = Path(os.read(hear, 1000).decode())
    os.close(hear)
    os.close(say)
    return path


def grow_old(path: Path, days: float) -> None:
    then = time.time() - 86400 * days
    os.utime(path, (then, then), follow_symlinks=False)


@pytest.mark.parametrize("end", ["SIGKILL", "os._exit"])
def test_a_folder_of_a_process_that_was_killed_is_deleted(end: str) -> None:
    left = in_another_process(end)
    sweep()
    assert left.exists()  # its lock might not be taken yet
    grow_old(left, 0.01)
    sweep()
    assert not left.exists()


def test_shared_memory_goes_unless_its_folder_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(local_files, "_SHARED_MEMORY", shared)
    left, held = in_another_process("SIGKILL"), held_folder()
    theirs = [shared / f"{own_prefix(left)}12ab", shared / f"sem.{own_prefix(left)}-x"]
    others = [shared / f"{own_prefix(held)}12ab", shared / "psm_12345678", shared / "sem.mp-x"]
    for path in (*theirs, *others):
        path.touch()
    for path in (left, held):
        grow_old(path, 100)
    sweep()
    assert not any(path.exists() for path in theirs)
    assert all(path.exists() for path in others)
    assert held.stat().st_mode & 0o777 == 0o700
    assert own_prefix(tmp_path) == ""


def test_a_folder_of_another_node_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may share ``TMPDIR``. NFS keeps a folder's lock on the node that took it."""
    path = held_folder()
    grow_old(path, 100)
    with monkeypatch.context() as there:
        boot = tmp_path / "boot_id"
        boot.write_text("zzzz-another-boot")
        there.setattr(local_files, "_BOOT", boot, raising=False)
        there.setattr(local_files, "_is_held", lambda path: False)
        sweep()
        assert path.exists()
    monkeypatch.setattr(local_files, "_is_held", lambda path: False)
    sweep()
    assert not path.exists()


def test_files_that_nobody_asked_for_are_deleted(folder: Path) -> None:
    old, new = folder / f"{FILE}old", folder / f"{FILE}new"
    for path, days in ((old, 8), (new, 6)):
        path.touch()
        grow_old(path, days)
    sweep()
    assert (old.exists(), new.exists()) == (False, True)


def test_what_is_not_left_by_this_user_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name says little where all users may write: neither links nor others' files are touched."""
    target = folder / "data"
    target.mkdir()
    (target / "row").touch()
    like_one = held_folder()
    like_one.rmdir()
    paths = [folder / f"{FILE}link", like_one, folder / "raybatch-results"]
    for path in paths[:2]:
        path.symlink_to(target)
    paths[2].mkdir()
    for path in (*paths, target):
        grow_old(path, 100)
    sweep()
    assert (target / "row").exists()
    assert paths[2].exists()
    (folder / f"{FILE}theirs").touch()
    grow_old(folder / f"{FILE}theirs", 100)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    sweep()
    assert (folder / f"{FILE}theirs").exists()
