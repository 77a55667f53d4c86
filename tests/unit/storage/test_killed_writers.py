# SPDX-License-Identifier: Apache-2.0
"""Readers never see half a file of a writer that is killed at any of its calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder

pytestmark = pytest.mark.slow

_DISK = """
import json, os, signal, stat, sys
from pathlib import Path
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.stream import write_stream

def stream(disk, path, content):
    with write_stream(disk, path) as writer:
        for start in range(0, len(content), 1_000_000):
            writer.write(content[start : start + 1_000_000])

def traced(folder, fatal):
    # Tells each call of a write, and dies before one of them.
    done, fsync = [], os.fsync

    def call(what):
        print(json.dumps(what), flush=True)
        done.append(what)
        if len(done) > fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced_fsync(number):
        call("sync file" if stat.S_ISREG(os.fstat(number).st_mode) else "sync folder")
        fsync(number)

    def hook(event, arguments):
        writes = event in {"os.link", "os.rename", "os.remove"}
        writes = writes or (event == "open" and arguments[2] & os.O_WRONLY)
        if writes and str(arguments[0]).startswith(str(folder)):
            call(event)

    os.fsync = traced_fsync
    sys.addaudithook(hook)

for fatal in range(100):
    root = Path(sys.argv[1], str(fatal))
    root.joinpath("a").mkdir(parents=True)
    child = os.fork()
    if not child:
        traced(root / "a", fatal)
        write = stream if sys.argv[2] == "stream" else getattr(LocalFolder, sys.argv[2])
        write(LocalFolder(str(root)), "a/x.parquet", b"1" * 20_000_000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps(None), flush=True)
    if not status:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


@pytest.mark.parametrize(
    ("operation", "naming"), [("write", "os.rename"), ("create", "os.link"), ("stream", "os.rename")]
)
def test_a_file_on_a_disk_before_each_call(tmp_path: Path, operation: str, naming: str) -> None:
    """A file appears once it is whole and synced, and is reported once its name is synced, too."""
    completed = subprocess.run(
        [sys.executable, "-c", _DISK, str(tmp_path), operation],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        check=True,
        text=True,
    )
    lives: list[list[str]] = [[]]
    for line in completed.stdout.splitlines():
        if (call := json.loads(line)) is None:
            lives.append([])
        else:
            lives[-1].append(call)
    whole, last = b"1" * 20_000_000, lives[-2]
    assert last.index("sync file") < last.index(naming)
    assert "sync folder" in last[last.index(naming) :]
    for fatal, calls in enumerate(lives[:-1]):
        disk = LocalFolder(str(tmp_path / str(fatal)))
        is_named = naming in (calls if calls is last else calls[:-1])
        assert [entry.path for entry in disk.list()] == ["a/x.parquet"] * is_named
        assert (disk.head("a/x.parquet") is not None) == is_named
        if is_named:
            assert disk.read("a/x.parquet") == whole
        else:
            disk.create("a/x.parquet", whole)
        left = disk.abandoned(-60)
        assert len(left) <= 1
        assert disk.abandoned(3600) == []
        disk.delete(left)
        assert [path.name for path in Path(disk.root, "a").iterdir()] == ["x.parquet"]
    assert len(lives) > 5
