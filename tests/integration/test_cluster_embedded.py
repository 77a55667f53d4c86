# SPDX-License-Identifier: Apache-2.0
"""The private Ray of a task: one at a time, and gone with its task even after a SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .end_to_end.waiting import wait_for

OWNER = """
import asyncio, sys
from airflow_provider_raybatch.cluster.local.head import embedded_cluster
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest, JobStatus

async def start_job(address):
    async with RayJobsClient(address) as client:
        # A child of its own session, as engines make them.
        await client.submit(JobRequest("setsid sleep 900 & sleep 900", "job"))
        while (await client.info("job")).status is not JobStatus.RUNNING:
            await asyncio.sleep(0.2)

with embedded_cluster(lambda line: print(line, flush=True), num_cpus=1) as address:
    asyncio.run(start_job(address))
    print("running", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[2]


def marked(mark):
    """Return pid and first words of each living process whose environment has `mark`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(folder.name), command[:80]))
        except OSError:
            continue
    return found


class Owner:
    def __init__(self, temp, mark):
        self.log = temp / f"{mark}.log"
        self.mark = mark
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temp), mark: "1"},
            stdin=subprocess.PIPE,
            stdout=self.log.open("wb"),
        )

    def wait_for(self, words, seconds=120):
        def found():
            has_ended = self.process.poll() is not None
            text = self.log.read_text()
            assert words in text or not has_ended, text
            return words in text

        wait_for(words, found, seconds, self.log.read_text, 0.1)


@pytest.fixture
def temp():
    """A folder with a short path, apart from other clusters and locks of this host."""
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def owners(temp):
    made = []

    def make(name):
        made.append(Owner(temp, f"EMBEDDED_{name}_{os.urandom(6).hex()}"))
        return made[-1]

    yield make
    for owner in made:
        owner.process.kill()
        owner.process.wait()
        for pid, _ in marked(owner.mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.thorough("an embedded Ray whose owner is killed; end_to_end/test_embedded starts two always")
def test_killed_owner_leaves_nothing_and_the_next_one_waits(owners, temp):
    """The next one is killed while its Ray starts. `end_to_end/test_embedded.py` has owners that end."""
    first = owners("A")
    first.wait_for("running")
    # Ray reports a job as running before its shell has begun the command.
    wait_for("its job", lambda: any("sleep 900" in command for _, command in marked(first.mark)), 30)
    second = owners("B")
    second.wait_for("waiting for it to end")
    assert "Starting" not in second.log.read_text()
    first.process.kill()
    second.wait_for("Starting a private Ray")
    # The lock was released, so nothing of the first one is left.
    assert marked(first.mark) == []
    wait_for("its Ray", lambda: len(marked(second.mark)) > 2, 60)
    assert len(list(temp.glob("rb-*"))) == 1
    second.process.kill()
    second.process.wait()
    wait_for("its end", lambda: not marked(second.mark), 60, lambda: str(marked(second.mark)))
    assert list(temp.glob("rb-*")) == []
