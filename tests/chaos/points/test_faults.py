# SPDX-License-Identifier: Apache-2.0
"""Faults hit the calls that they name, once, on disk and in S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.s3_server import S3Server, serving

from ..places import Disk, Place, contents
from . import stored
from .catalogue import BATCH, POINTS, ROWS, ROWS_PER_PART, STORES
from .striking import INSIDE, place

_JOB = """
import sys
from airflow_provider_raybatch.storage.folder import folder
place = folder(sys.argv[1])
for number in range(3):
    place.write(f"data/{number}", b"content")
place.create("created", b"content")
place.replace("created", b"content", b"other content")
print([entry.path for entry in place.list("data")])
place.delete([f"data/{number}" for number in range(3)])
"""
# A job without Ray: the storage calls of replicas and driver in one process, in a folder with a left-over.
_WHOLE_JOB = """
import os, pathlib, sys
from airflow_provider_raybatch.job.output import after_commit
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.contract.manifest import RunStatistics
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.reuse.response_store import remember
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.job.row import Completion, Response, RowOutcome
from airflow_provider_raybatch.job.parts.part import write_all
from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.specs import submitted
import pyarrow as pa
root, struck, rows, batch, per_part = *map(pathlib.Path, sys.argv[1:3]), *map(int, sys.argv[3:])
(struck / "driver.pid").write_text(str(os.getpid()))
place = folder(str(root / "destination"))
store = ResponseStore(folder(str(root / "reuse")), print)
spec = submitted(destination=place.uri, rows_per_part=per_part)
task = task_of(spec)
journal = Journal(place, spec.submission, False, spec.fingerprint)
journal.claim()
old = root / "destination/data/29991231T000000-00000000"
old.mkdir(parents=True)
for number in range(3):
    (old / f"part-0000{number}.parquet").touch()
def part(ordinals):
    answers = [Response((Completion("ok", "stop", 1),), input_tokens=1) for _ in ordinals]
    keys = [number.to_bytes(16, "big") for number in ordinals]
    outcomes = [RowOutcome(*one) for one in zip(ordinals, answers, [""] * len(keys), keys)]
    stem = f"_raybatch/parts/task/run/driver~0/{ordinals[0]:08d}"
    return write_all(place, stem, table_of([{"n": number} for number in ordinals]), outcomes, task)[0]
written = [part(range(first, first + batch)) for first in range(0, rows, batch)]
part(range(rows))  # the one part of a replica with a long flush_interval
manifest = prepare(spec, journal, written, rows, RunStatistics(), pa.schema([]), "")
commit(journal, manifest)
remember(store, place, written, print, task)
after_commit.collect(place, journal)
"""
_DATA = ("data/0", "data/1", "data/2")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=STORES)
def target(request, tmp_path, server) -> Place:
    return place(request.param, server, server.new_bucket(), tmp_path / "place")


def run(target: Place, folder: Path, **fault: object) -> subprocess.CompletedProcess[str]:
    fault = {"point": "p", "nth": 1, "driver": False, "at": "before", "path": "", **fault}
    aims = {"struck": str(folder), "signals": {"p": "KILL"}, "keepers": [], "faults": [fault]}
    environment = {"PYTHONPATH": str(INSIDE), "RAYBATCH_AIMS": json.dumps(aims), **target.environment}
    return subprocess.run(
        [sys.executable, "-c", _JOB, target.uri],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ({"call": "put", "at": "before", "path": "^data/", "nth": 2}, _DATA[:1]),
        ({"call": "put", "at": "naming", "path": "^data/", "nth": 3}, _DATA[:2]),
        ({"call": "put", "at": "after", "path": "^data/", "nth": 3}, _DATA),
        ({"call": "put", "at": "naming", "path": "^created$"}, _DATA),
        ({"call": "put", "at": "after", "path": "^created$"}, (*_DATA, "created")),
        ({"call": "list", "path": "^data$"}, (*_DATA, "created")),
        ({"call": "delete", "path": "^data/", "nth": 3}, ("created", "data/2")),
    ],
)
def test_kills_at_the_call_it_names_and_only_once(fault, left, target, tmp_path):
    assert run(target, tmp_path, **fault).returncode == -signal.SIGKILL
    assert sorted(contents(target, "")) == sorted(left)
    record = json.loads((tmp_path / "p.json").read_text())
    assert (record["point"], record["signal"]) == ("p", "KILL")
    if "created" not in left:  # otherwise the second creation fails by itself
        assert run(target, tmp_path, **fault).returncode == 0
        assert {*contents(target, "")} == {"created"}


def test_what_is_replaced_counts_like_what_is_created(target, tmp_path):
    assert (
        run(target, tmp_path, call="put", at="after", path="^created$", nth=2).returncode == -signal.SIGKILL
    )
    assert contents(target, "created") == {"created": b"other content"}


def test_without_a_fault_that_fits_nothing_happens(target, tmp_path):
    done = run(target, tmp_path, call="put", path="^elsewhere/")
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.glob("*.json")]
    assert "data/2" in done.stdout


def test_storage_points_of_a_job_come_in_catalogue_order(tmp_path):
    struck, reuse = tmp_path / "struck", Disk(tmp_path / "reuse")
    struck.mkdir()
    stored.fill(reuse)
    points = [point for point in POINTS.values() if point.call]
    aims = {
        "struck": str(struck),
        "signals": dict.fromkeys((point.name for point in points), "CONT"),  # which does nothing
        "keepers": [],
        "faults": [point.fault for point in points],
    }
    done = subprocess.run(
        [sys.executable, "-c", _WHOLE_JOB, tmp_path, struck, *map(str, (ROWS, BATCH, ROWS_PER_PART))],
        env={**os.environ, "PYTHONPATH": f"{INSIDE}:{Path.cwd()}", "RAYBATCH_AIMS": json.dumps(aims)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hits = sorted((json.loads(file.read_text()) for file in struck.glob("*.json")), key=lambda hit: hit["at"])
    for is_of_store in (False, True):  # it is filled while the dataset is published
        expected = [point.name for point in points if point.reuses is is_of_store]
        assert [hit["point"] for hit in hits if POINTS[hit["point"]].reuses is is_of_store] == expected
    assert not stored.lost(reuse)
