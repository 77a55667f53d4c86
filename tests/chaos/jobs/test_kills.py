# SPDX-License-Identifier: Apache-2.0
"""Killed jobs of each kind end with each row once, and the harness finds flaws."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ray_processes import ROOT

from ..places import published
from ..results import read_lines
from .killing import ZEROS, Task, attempt
from .workload import KINDS

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    file = tmp_path_factory.mktemp("kills") / "results.jsonl"
    options = ["--seeds", f"0:{len(KINDS)}", "--results", str(file)]
    subprocess.run([sys.executable, "-m", "tests.chaos.jobs", *options], cwd=ROOT, check=False)
    return read_lines(file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_job_ends_with_each_row_once(kind, tasks):
    (task,) = (one for one in tasks if one["kind"] == kind)
    assert task["hits"]
    assert not task["flaws"], task


def test_the_harness_finds_flaws(tmp_path):
    task = Task(0, "adapters", tmp_path)
    task.began["raybatch-x-0"] = time.time()
    attempt(str(tmp_path), 0, task.work.fields)

    def flaws():
        found = {**task.rows(), **task.requests()}
        return {name: found[name] for name in ZEROS if found.get(name)}

    assert flaws() == {}
    file, rows = min(Path(published(task.out).uri).iterdir()), len(published(task.out).rows)
    again = shutil.copy(file, file.with_name("again.parquet"))
    assert 0 < flaws()["duplicated"] < rows
    again.unlink()
    (log,) = task.log.glob("*.jsonl")
    opened, *events = (json.loads(line) for line in log.read_text().splitlines())
    asked = next(one for one in events if "text" in one.get("prompt", ""))
    events = [{**opened, "submission": "raybatch-x-1"}, asked, {**asked, "prompt": "of no row"}]
    log.with_name("host-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    task.began["raybatch-x-1"] = time.time()
    assert flaws() == {"late": 1, "unexplained": 1, "foreign": 1}
    task.lost.add(("raybatch-x-1", 1))
    assert flaws() == {"late": 1, "foreign": 1}  # a part had the answer before, so no kill excuses it
    file.unlink()
    task.work.rows[:] = [{**row, "text": "other"} for row in task.work.rows]
    assert 0 < task.rows()["lost"] <= rows
    assert task.rows()["wrong"] > 0
