# SPDX-License-Identifier: Apache-2.0
"""The reaper beside a fake Ray that starts processes as Ray does: children, grandchildren, orphans."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import EmbeddedClusterError
from airflow_provider_raybatch.cluster.local import head as ray_head
from airflow_provider_raybatch.cluster.local import reaper
from airflow_provider_raybatch.cluster.local.head import RayHead, _free_ports, _object_store_bytes

# A child that ignores SIGTERM, and an orphan in a session of its own, as daemons are.
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
orphan = "import subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)"
subprocess.Popen([sys.executable, "-c", stubborn])
subprocess.run([sys.executable, "-c", orphan, "-c", stubborn], check=True)
Path("up").write_text("")
time.sleep(600)
"""


def marked(mark):
    """Return living processes whose environment has `mark`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def guarded(tmp_path):
    """A reaper around FAMILY: (mark, home, write end of its pipe, its process)."""
    home = tmp_path / "home"
    home.mkdir()
    mark = f"REAPER_TEST_{os.urandom(8).hex()}"
    read_end, write_end = os.pipe()
    command = [sys.executable, "-P", reaper.__file__, "--pipe", str(read_end), "--home", str(home)]
    process = subprocess.Popen(
        [*command, "--", sys.executable, "-c", FAMILY], pass_fds=[read_end], env={**os.environ, mark: "1"}
    )
    os.close(read_end)
    wait_until((home / "up").exists)
    yield mark.encode(), home, write_end, process
    for pid in marked(mark.encode()):
        os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("how", ["end of file", "SIGTERM"])
def test_at_its_end_all_processes_end_and_the_folder_goes(guarded, how):
    mark, home, write_end, process = guarded
    assert len(marked(mark)) == 4
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        os.close(write_end)
    assert process.wait(60) == 0
    assert marked(mark) == []
    assert not home.exists()


def test_processes_hidden_from_this_user_are_skipped(monkeypatch):
    read_text = Path.read_text

    def hidden(path, *arguments, **options):
        if path == Path("/proc/1/stat"):
            raise PermissionError
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    pids = {pid for pid, _ in reaper._processes()}
    assert os.getpid() in pids
    assert 1 not in pids


@pytest.fixture
def stand_in(tmp_path):
    def make(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return str(program)

    return make


@pytest.fixture
def temp(monkeypatch):
    """A folder for temporary files of this test alone, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_ray_that_never_answers_is_ended_and_its_log_shown(stand_in, temp):
    mark = f"HEAD_TEST_{os.urandom(8).hex()}"
    head = RayHead({mark: "1"}, python=stand_in("echo hanging; sleep 600"), startup_timeout=4.0)
    with pytest.raises(EmbeddedClusterError, match=r"took no jobs within 4 s.*hanging"):
        head.__enter__()
    assert marked(mark.encode()) == []
    assert not list(temp.iterdir())


@pytest.mark.parametrize(("quick", "tries"), [(60.0, 1), (0.0, 2)])
def test_only_what_may_be_a_busy_hosts_fault_is_tried_twice(
    stand_in, temp, tmp_path, monkeypatch, quick, tries
):
    monkeypatch.setattr(ray_head, "_QUICK_FAILURE_SECONDS", quick)
    with pytest.raises(EmbeddedClusterError, match=r"ended while it started.*: the raylet timed out"):
        RayHead(python=stand_in(f"echo x >> {tmp_path}/tries; echo the raylet timed out; exit 1")).__enter__()
    assert (tmp_path / "tries").read_text().count("x") == tries
    assert not list(temp.iterdir())


def test_the_command_line_and_environment(stand_in, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/elsewhere")
    foreign = "$RAY_ADDRESS$RAY_AUTH_TOKEN_PATH"
    script = f'echo "args: $*"; echo "token: $RAY_AUTH_MODE/${{#RAY_AUTH_TOKEN}} other: {foreign}"; exit 1'
    with pytest.raises(EmbeddedClusterError) as raised:
        RayHead(python=stand_in(script), num_cpus=2).__enter__()
    message = str(raised.value)
    assert "start --head --disable-usage-stats" in message
    assert "--dashboard-host=127.0.0.1" in message
    assert "--num-cpus=2" in message
    assert "token: token/64 other: \n" in message + "\n"
    with pytest.raises(EmbeddedClusterError) as raised:
        RayHead(python=stand_in(script), with_token=False).__enter__()
    assert "token: disabled/0" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "token"),
    [
        ({}, "inherited"),
        ({"AWS_ACCESS_KEY_ID": "own"}, "none"),
        ({"AWS_ACCESS_KEY_ID": "own", "AWS_SESSION_TOKEN": "own"}, "own"),
    ],
)
def test_a_session_token_goes_with_its_own_key_alone(stand_in, monkeypatch, given, token):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "inherited")
    with pytest.raises(EmbeddedClusterError, match=f"token: {token}"):
        RayHead(given, python=stand_in('echo "token: ${AWS_SESSION_TOKEN-none}"; exit 1')).__enter__()


def test_a_forked_child_does_not_keep_ray_alive():
    read_end, write_end = os.pipe()
    ray_head._open_pipes.add(write_end)
    child = os.fork()
    if child == 0:
        time.sleep(90)
        os._exit(0)
    ray_head._close_pipe(write_end)
    try:
        ended, _, _ = select.select([read_end], [], [], 60)
        assert ended, "the child still holds the pipe"
        assert os.read(read_end, 1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read_end)


def test_ports_differ_and_the_object_store_fits_the_host():
    assert len(set(_free_ports(20))) == 20
    sizes = {4: 4 * 2**30 * 15 // 100, 16: 2 * 2**30, 31: 2 * 2**30, 64: None, 2000: None}
    assert {gib: _object_store_bytes(gib * 2**30) for gib in sizes} == sizes
