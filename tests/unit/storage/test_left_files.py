# SPDX-License-Identifier: Apache-2.0
"""What killed processes leave on a node, and a later one deletes."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from airflow_provider_raybatch.storage import local_files
from airflow_provider_raybatch.storage.local_files import FILE, held_folder, own_prefix, sweep


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
