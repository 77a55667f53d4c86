# SPDX-License-Identifier: Apache-2.0
"""Processes that ask for spawn are forked from a server that has imported what they need."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.job.engine_process import fork_server
from airflow_provider_raybatch.storage.local_files import own_prefix, sweep

# The children ask for spawn, as vLLM does; the grandchild is started by the child.
SCRIPT = """
import json, multiprocessing, os, sys, time
from pathlib import Path
try:
    from setproctitle import setproctitle
except ImportError:  # on a cluster without vLLM
    def setproctitle(title): pass
from multiprocessing import shared_memory
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine_process import fork_server

def tell(say):
    setproctitle("VLLM::Engine")
    say.send({
        "title": Path("/proc/self/cmdline").read_text().rstrip("\\0"),
        "pid": os.getpid(),
        "server": os.getppid(),
        "imported": "slow_to_import" in sys.modules,
        "late": os.environ.get("LATE"),
        "affinity": sorted(os.sched_getaffinity(0)),
    })

def child(say):
    kept = shared_memory.SharedMemory(create=True, size=8), multiprocessing.get_context("spawn").Lock()
    tell(say)
    os.environ["OMP_PLACES"] = "{%d}" % min(os.sched_getaffinity(0))
    process = multiprocessing.get_context("spawn").Process(target=grandchild, args=(say,))
    process.start()
    process.join()
    time.sleep(600)

def grandchild(say):
    tell(say)
    time.sleep(600)

if __name__ == "__main__":
    fork_server._PRELOADED = "slow_to_import"
    fork_server.start()
    vllm_compat.keep_files_in(fork_server.folder_of_sockets())
    os.environ["LATE"] = "after the server's start"
    os.environ["FIRST"] = "changed"
    context = multiprocessing.get_context("spawn")
    hear, say = context.Pipe()
    process = context.Process(target=child, args=(say,))
    process.start()
    print(json.dumps([hear.recv(), hear.recv()]), flush=True)
    process.join()
    print(process.exitcode, flush=True)
    time.sleep(600)
"""
PRELOADED = "from airflow_provider_raybatch.job.engine_process import fork_server; fork_server.prepare()\n"

Told = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder with a name that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def parent(tmp_path: Path, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "slow_to_import.py").write_text(PRELOADED)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    # An engine of another test may have chosen a folder for this process.
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_RPC_BASE_PATH"}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={"FIRST": "", **inherited, "PYTHONPATH": path, "TMPDIR": str(scratch)},
        ) as process,
    ):
        yield process
        process.kill()


@pytest.fixture
def told(parent: subprocess.Popen[str]) -> Told:
    assert parent.stdout is not None
    child, grandchild = json.loads(parent.stdout.readline())
    return child, grandchild


def gone(*pids: int) -> bool:
    """Return whether they end soon. One that nothing has waited for is a zombie until then."""
    until = time.monotonic() + 60
    while any(map(runs, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_children_share_import_and_environment(told: Told, parent: subprocess.Popen[str]) -> None:
    child, grandchild = told
    assert child["imported"]
    assert grandchild["imported"]
    assert child["server"] == grandchild["server"] != parent.pid
    assert child["late"] == grandchild["late"] == "after the server's start"
    assert grandchild["affinity"] == child["affinity"][:1]


def test_threads_start_the_server_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changes the process's environment meanwhile."""
    monkeypatch.setattr(fork_server, "serve_spawn", lambda: None)
    both = threading.Barrier(2)

    def meet() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            pytest.fail("two threads are in it")

    monkeypatch.setattr(forkserver._forkserver, "ensure_running", meet)
    with ThreadPoolExecutor(2) as threads:
        for started in [threads.submit(fork_server.start) for _ in range(2)]:
            started.result(60)
    assert both.broken  # each was there alone


def test_children_can_be_told_apart_by_their_titles(told: Told) -> None:
    """Also where the first variable in memory, beside which a title is written, has changed."""
    pytest.importorskip("setproctitle")
    assert [one["title"] for one in told] == ["VLLM::Engine"] * 2


@pytest.mark.parametrize("victim", ["parent", "server"])
def test_all_end_with_the_parent_or_server(told: Told, parent: subprocess.Popen[str], victim: str) -> None:
    child, grandchild = told
    os.kill({"parent": parent.pid, "server": child["server"]}[victim], signal.SIGKILL)
    # The second as Ray does to the children of an actor that ends, whose own process may stay for a while.
    assert gone(child["pid"], grandchild["pid"], child["server"])


@pytest.mark.parametrize(
    ("number", "logged"),
    [(signal.SIGKILL, ()), (signal.SIGSEGV, ("Fatal Python error: Segmentation fault", "in child"))],
)
def test_exit_code_and_log_tell_of_a_signal(
    told: Told, parent: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, logged: tuple[str, ...]
) -> None:
    child, _ = told
    os.kill(child["pid"], number)
    assert parent.stdout is not None
    assert parent.stdout.readline().strip() == str(-number)
    log = (tmp_path / "log").read_text()
    assert all(text in log for text in logged)


def test_what_killed_processes_leave_is_deleted_later(
    told: Told, parent: subprocess.Popen[str], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray kills a replica with all its children, and with them Python's own tracker of shared memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    (folder,) = scratch.iterdir()
    os.utime(folder, (0, 0))
    sweep()
    assert [path.is_socket() for path in folder.glob("*/*")] == [True]
    processes = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children(recursive=True)]
    for process in processes:
        process.suspend()  # so that none tidies up
    for process in reversed(processes):  # stopped children of a dead parent would go on
        process.kill()
    assert gone(*(process.pid for process in processes))
    prefix = own_prefix(folder)
    assert len([*Path("/dev/shm").glob(f"{prefix}*"), *Path("/dev/shm").glob(f"sem.{prefix}*")]) == 2
    sweep()
    assert list(scratch.iterdir()) == []
    assert [*Path("/dev/shm").glob(f"{prefix}*"), *Path("/dev/shm").glob(f"sem.{prefix}*")] == []
