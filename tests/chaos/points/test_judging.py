# SPDX-License-Identifier: Apache-2.0
"""The harness finds flaws: each kind of wrong run has a flaw that names it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.manifest import RunStatistics
from airflow_provider_raybatch.job.output.commit import commit, prepare
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.storage.folder import folder
from tests.support.publishing import part
from tests.support.s3_server import S3Server
from tests.support.specs import submitted

from ...integration.end_to_end.waiting import wait_for
from ..plan import MODES
from ..workload import output_of, prompt_of
from .catalogue import POINTS, ROWS, STORES, Aim
from .journeys import journeys
from .page import page
from .striking import INSIDE, Strike

AIM = Aim(("manifest_named", "reported"), "blocking", "disk")


@pytest.fixture(autouse=True)
def flawed_runs_keep_their_folders_here(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))


class FakeRun:
    """A DAG run that has already ended; `do` does the work of its job."""

    def __init__(self, params: dict[str, Any], do: Callable[[dict[str, Any]], None]) -> None:
        self.state_if_known = "success"
        do(params)
        journal = sorted(Path(params["destination"], "_raybatch/journal").glob("*.json"))
        published = json.loads(journal[-1].read_text())["published"]["manifest"]
        self._uri = json.loads(Path(params["destination"], published).read_text())["uri"]

    def task(self, task_id: str) -> Any:
        return SimpleNamespace(xcom=lambda: {"uri": self._uri}, read=lambda: {"try_number": 2})

    def evidence(self) -> str:
        return "log"


def outcome(
    tmp_path: Path,
    *statuses: str,
    aim: Aim = AIM,
    hits: Sequence[str] | None = None,
    then: Callable[[dict[str, Any]], object] = lambda params: None,
    **how: Any,
) -> Any:
    """Return the harness's outcome of a run that is struck, publishes its rows, and does more.

    :param statuses: the statuses of its jobs.
    :param hits: the points at which it is struck; by default all that are aimed at.
    :param how: arguments of `published`.
    """

    def do(params: dict[str, Any]) -> None:
        struck(params, *(aim.points if hits is None else hits))
        published(params, **how)
        then(params)

    jobs = [{"status": status} for status in statuses or ("FAILED", "FAILED")]
    world = SimpleNamespace(
        airflow=SimpleNamespace(api=SimpleNamespace(trigger=lambda dag_id, **params: FakeRun(params, do))),
        jobs=SimpleNamespace(of=lambda task: jobs),
    )
    return Strike(world, aim, S3Server(""), "").outcome(tmp_path)


def struck(params: dict[str, Any], *points: str) -> None:
    for point in points:
        record = {"point": point, "signal": "KILL", "pids": [1], "at": time.time()}
        Path(params["aims"]["struck"], f"{point}.json").write_text(json.dumps(record))


def published(params: dict[str, Any], rows: int = ROWS, token: str = "token", times: int = 1) -> None:
    source = [
        json.loads(line)
        for file in Path(params["source"]).iterdir()
        for line in file.read_text().splitlines()
    ][:rows]
    output = [output_of(row) for row in source]
    answers = [
        Response((Completion(one.response, one.finish_reason, one.output_tokens),), one.input_tokens)
        for one in output
    ]
    place = folder(params["destination"])
    spec = submitted(token=token, destination=place.uri)
    assert spec.submission is not None
    journal = Journal(place, spec.submission, take_over=True, fingerprint=spec.fingerprint)
    journal.claim()
    written = part(place, source, answers, run=f"_raybatch/parts/{token}")
    manifest = prepare(spec, journal, [written], rows, RunStatistics(), pa.schema([]), "")
    commit(journal, manifest)
    requests = Path(params["engine_args"]["request_log"])
    requests.mkdir(exist_ok=True)
    events = [{"at": 0, "event": "start", "prompt": prompt_of(row)} for row in source] * times
    lines = [json.dumps(one) for one in ({"at": 0, "event": "open", "submission": "s"}, *events)]
    (requests / f"{token}-1.jsonl").write_text("\n".join(lines) + "\n")


def test_a_good_run(tmp_path):
    assert outcome(tmp_path).flaws == ()
    assert not [*tmp_path.iterdir()]


def test_a_point_that_was_never_hit(tmp_path):
    assert outcome(tmp_path, hits=["reported"]).flaws == ("never struck at manifest_named",)
    assert [*tmp_path.iterdir()]  # the evidence


@pytest.mark.parametrize(
    ("how", "flaw"),
    [
        ({"rows": ROWS - 1}, "lost=1"),
        ({"times": 2}, f"generated={2 * ROWS} of {ROWS} to {ROWS}"),
    ],
)
def test_rows_that_are_lost_or_asked_twice(how, flaw, tmp_path):
    assert flaw in outcome(tmp_path, **how).flaws


@pytest.mark.parametrize(("process", "most"), [(1, ROWS), (2, 2 * ROWS)])
def test_what_a_killed_replica_had_written_is_not_asked_again(process, most, tmp_path):
    def rename(params):
        (part,) = Path(params["destination"]).glob("_raybatch/parts/**/*.parquet")
        part.rename(part.with_name(f"actor-{process}-abcdef01-000001.{part.name.partition('.')[2]}"))

    aim = Aim(("last_part",), "blocking", "disk")
    flaws = outcome(tmp_path, "SUCCEEDED", aim=aim, then=rename, times=2).flaws
    assert flaws == (() if most == 2 * ROWS else (f"generated={2 * ROWS} of {ROWS} to {most}",))


def test_a_second_commit_and_an_old_copy(tmp_path):
    def commit_again(params):
        copy = Path(params["destination"], "manifest.json")
        old = copy.read_bytes()
        published(params, token="other")
        copy.write_bytes(old)

    flaws = outcome(tmp_path, then=commit_again).flaws
    assert "manifest.json is not the journal's manifest" in flaws
    assert "commits=2" in flaws


def test_a_job_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{Strike.__module__}._JOBS_END", 0.1)
    assert outcome(tmp_path, "RUNNING").flaws == ("a job is left running",)


def test_a_second_job_where_the_first_was_not_struck(tmp_path):
    aim = Aim(("posted",), "blocking", "disk")
    assert outcome(tmp_path, "SUCCEEDED", aim=aim).flaws == ()
    flaws = outcome(tmp_path, "SUCCEEDED", "SUCCEEDED", aim=aim).flaws
    assert flaws == ("jobs=2, though no driver was struck",)


def test_what_breaks_in_the_harness_is_a_flaw_of_the_run(tmp_path):
    def fail(params):
        raise RuntimeError("no answer\nfrom it")

    flaws = outcome(tmp_path, hits=(), then=fail).flaws
    assert "RuntimeError: no answer" in flaws
    assert "never struck at manifest_named, reported" in flaws


def test_a_frozen_process_is_frozen_with_its_keeper_and_goes_on(tmp_path):
    aims = {"struck": str(tmp_path), "signals": {"p": "STOP"}, "keepers": ["the-keeper"]}
    code = (
        f"import sys; sys.path.insert(0, {str(INSIDE)!r}); import aimed_strike as a; a.strike({aims!r}, 'p')"
    )
    keeper = subprocess.Popen(["/bin/sh", "-c", '"$@"; exit 0', "the-keeper", sys.executable, "-c", code])
    try:
        struck_file = tmp_path / "p.json"
        pids = wait_for(
            "the strike", lambda: struck_file.exists() and json.loads(struck_file.read_text())["pids"], 60
        )
        assert pids[-1] == keeper.pid
        for pid in pids:
            wait_for("its freeze", lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 30)
        for pid in pids:
            psutil.Process(pid).send_signal(signal.SIGCONT)
        assert keeper.wait(60) == 0
    finally:
        keeper.kill()


@pytest.mark.parametrize("round_", range(40))
def test_journeys_cover_every_point_and_consecutive_ones_differ(round_):
    aims = journeys(round_)
    killed = [name for aim in aims if aim.signal == "KILL" for name in aim.points]
    assert sorted(killed) == sorted(POINTS)
    assert aims != journeys(round_ + 1)
    for aim in aims:
        assert all(aim.mode in point.modes for point in aim.found)


def test_every_point_is_frozen_within_some_rounds():
    frozen = {aim.points[-1] for number in range(40) for aim in journeys(number) if aim.signal == "STOP"}
    assert frozen == {p.name for p in POINTS.values() if p.freezes and p.where != "trigger"}


def test_each_run_comes_in_each_mode_and_store():
    found = {(aim.points, aim.mode, aim.store) for number in range(4) for aim in journeys(number)[2:]}
    for aim in journeys(0)[2:]:
        modes = [mode for mode in MODES if all(mode in point.modes for point in aim.found)]
        assert {one[1:] for one in found if one[0] == aim.points} == set(product(modes, STORES))


def test_the_page_shows_cells_and_flaws(tmp_path):
    line = {"commit": "abc123", **asdict(outcome(tmp_path / "flawed", hits=["reported"]))}
    text = "\n".join(page([line]))
    assert "1 runs of commit abc123, 1 of them with flaws." in text
    assert "FLAWED (1 of 1)" in text
    assert "never struck at manifest_named" in text
