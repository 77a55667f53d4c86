# SPDX-License-Identifier: Apache-2.0
"""The faults besides kills work as named."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.config import Config

from tests.support.http_server import Handler, listening

from . import small_disk, world
from .frozen import FreezingProxy
from .lake import bucket_with, faulty_lake
from .places import Parts, phase, rows_at
from .plan import FAULTS, ON_DISK, plan
from .world import Live, World


class Hello(Handler):
    def reply(self):
        self.send(200, b"hello")

    do_GET = reply  # noqa: N815 - http.server's name


def test_frozen_connections_neither_answer_nor_end():
    with listening(Hello) as port, FreezingProxy(port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        assert httpx.get(url).text == "hello"
        proxy.freeze()
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(url, timeout=0.3)
        began = time.monotonic()
        threading.Timer(0.3, proxy.thaw).start()
        assert httpx.get(url, timeout=10).text == "hello"
        assert time.monotonic() - began >= 0.3


def test_lake_fails_some_calls_and_is_seen_whole_from_behind(tmp_path):
    with faulty_lake() as lake:
        (tmp_path / "a.jsonl").write_text("{}")
        source, place = bucket_with(lake, tmp_path)
        assert source == f"s3://{place.bucket}/source/"
        client = lake.client(config=Config(retries={"total_max_attempts": 1}))
        table = pa.table({"ok": [True], "input": [{"id": 1, "asks": 1, "text": "a"}]})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        outcomes = Counter()
        before = time.time()
        for number in range(200):
            try:
                key = f"destination/_raybatch/parts/t/q/s/{number}.parquet"
                client.put_object(Bucket=place.bucket, Key=key, Body=buffer.getvalue())
                outcomes["done"] += 1
            except Exception:
                outcomes["failed"] += 1
        assert 1 <= outcomes["failed"] <= 20
        parts = Parts(place).all()
        assert outcomes["done"] <= len(parts) < 200 + outcomes["failed"]
        assert {part.prompts for part in parts} == {frozenset({"Row 1 says a"})}
        assert all(before <= part.appeared <= time.time() for part in parts)
        assert phase(place) == "before claim"
        assert rows_at(place, f"{place.uri}/_raybatch") == table.to_pylist() * len(parts)


def test_faults_take_turns_and_a_third_is_on_s3():
    kills = [plan(seed, faults=True) for seed in range(42)]
    met = {(kill.kind, kill.mode, kill.store) for kill in kills}
    assert met >= {(kind, "deferrable", "disk") for kind in FAULTS}
    assert {(kind, store) for kind, _, store in met} >= {
        (kind, "s3") for kind in FAULTS if kind not in ON_DISK
    }
    assert sum(plan(seed).store == "s3" for seed in range(42)) == 14
    assert all(kill.share >= 0.7 for kill in kills if kill.kind == "api")


def test_full_disk_has_little_room_and_then_all_again(tmp_path):
    mounted = f"""
import errno, time
from pathlib import Path
from tests.chaos import small_disk
small_disk.FULL = 0.5
disk = Path({str(tmp_path)!r}) / "destination"
small_disk.mount(disk)
small_disk.fill(disk, 0.5)
(disk / "a").write_bytes(bytes(8 * 1024))
try:
    (disk / "b").write_bytes(bytes(64 * 1024))
except OSError as error:
    print(error.errno == errno.ENOSPC)
time.sleep(1)
(disk / "b").write_bytes(bytes(2**20))
free = small_disk.shutil.disk_usage
small_disk.shutil.disk_usage = lambda folder: free(folder)._replace(free=free(folder).free + 2**20)
small_disk.fill(disk, 0.5)  # beside a job that writes 1 MiB just then
print(free(disk).free)
small_disk.unmount(disk)
print(list(disk.iterdir()))
"""
    alone = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "x", str(tmp_path)], check=False).returncode:
        pytest.skip("this machine does not allow a small disk to be mounted")
    ran = subprocess.run(
        [*alone, sys.executable, "-c", mounted],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, small_disk._MARK: "1"},
    )
    assert ran.stdout == "True\n0\n[]\n", ran.stderr


def opened(folder, pid, at):
    """An engine opens."""
    (folder / "requests").mkdir(exist_ok=True)
    line = {"event": "open", "submission": "s", "at": at}
    (folder / f"requests/s-{pid}.jsonl").write_text(json.dumps(line) + "\n")


def test_engines_that_open_on_a_full_disk_are_lost(tmp_path):
    for pid, at in ((1, 9.0), (2, 11.0), (3, 10.0 + small_disk.FULL)):
        opened(tmp_path, pid, at)
    run = Live(None, tmp_path)
    run.lose_opened(10.0, small_disk.FULL)
    assert run.lost == {2: 10.0}


@pytest.mark.parametrize(("kind", "lost"), [("head", {1, 2, 4}), ("node", {1, 4})])
def test_engines_that_open_while_a_kill_is_prepared_are_lost(kind, lost, tmp_path, monkeypatch):
    monkeypatch.setattr(world, "_OUTAGE", 0.0)

    def killed(*node):
        for pid in (1, 2, 4):
            opened(tmp_path, pid, time.time())
        return {1, 4}  # the second one's process began after the first look at the node

    def replaced(*node):
        opened(tmp_path, 3, time.time())

    chaos = World(cpus=1)
    chaos.jobs = SimpleNamespace(of=lambda task: [])
    chaos.cluster = SimpleNamespace(
        workers=["a"],
        processes_of=lambda node: [SimpleNamespace(pid=1)],
        kill_head=killed,
        kill_worker=killed,
        replace_all=replaced,
        replace_worker=replaced,
    )
    run = Live(None, tmp_path)
    chaos.live.append(run)
    chaos._kill_shared(run, kind, with_family=False, choice=0.0)
    assert {*run.lost} == lost


def test_task_without_retries_is_cleared_once_a_kill(tmp_path):
    run = Live(None, tmp_path)
    run.hit("cleared", [], own=True)
    assert run.may_be_cleared()
    run.hit("clear", [], own=False)
    assert not run.may_be_cleared()
    run.hit("api", [], own=False)
    assert run.may_be_cleared()
