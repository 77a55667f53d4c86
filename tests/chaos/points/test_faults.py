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

from ...s3_server import S3Server, serving
from .catalogue import POINTS, STORES, table
from .places import Place, place
from .striking import INSIDE

_JOB = """
import sys
from airflow_provider_raybatch.job.storage.folder import folder
place = folder(sys.argv[1])
for number in range(3):
    place.write(f"data/{number}", b"content")
place.create("created", b"content")
place.replace("created", b"content", b"other content")
print([entry.path for entry in place.list("data")])
place.delete([f"data/{number}" for number in range(3)])
"""
_DATA = ("data/0", "data/1", "data/2")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=STORES)
def target(request, tmp_path, server) -> Place:
    return place(request.param, server, server.new_bucket(), tmp_path, "place")


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
    assert sorted(target.contents("")) == sorted(left)
    told = json.loads((tmp_path / "p.json").read_text())
    assert (told["point"], told["signal"]) == ("p", "KILL")
    if "created" not in left:  # else creating it again fails by itself
        assert run(target, tmp_path, **fault).returncode == 0
        assert {*target.contents("")} == {"created"}


def test_what_is_replaced_counts_like_what_is_created(target, tmp_path):
    assert (
        run(target, tmp_path, call="put", at="after", path="^created$", nth=2).returncode == -signal.SIGKILL
    )
    assert target.contents("created") == {"created": b"other content"}


def test_without_a_fault_that_fits_nothing_happens(target, tmp_path):
    done = run(target, tmp_path, call="put", path="^elsewhere/")
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.glob("*.json")]
    assert "data/2" in done.stdout


def test_the_table_has_every_point_in_each_mode_and_store():
    aims = table()
    assert len({*aims}) == len(aims)
    assert {aim.points[-1] for aim in aims} == {*POINTS}
    for point in POINTS.values():
        cells = {(aim.mode, aim.store) for aim in aims if aim.points[-1] == point.name}
        assert cells == {(mode, store) for mode in point.modes for store in STORES}
