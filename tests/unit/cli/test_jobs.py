# SPDX-License-Identifier: Apache-2.0
"""Jobs, logs and warm engines of a connection's cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.committed import KEY
from tests.support.fake_ray import FakeRay, Script


@pytest.fixture
def show(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*words: str) -> str:
        main(list(words))
        return capsys.readouterr().out

    return shown


def submit(ray: FakeRay, task_id: str, map_index: int = -1, **script: Any) -> str:
    ray.script = lambda _ray, _body: Script(**script)
    task = TaskKey(dag_id="nightly", run_id="scheduled__2026", task_id=task_id, map_index=map_index)
    key = SubmissionKey(task, "token")
    name = key.submission_id(0)
    ray.submit(entrypoint="python", submission_id=name, metadata=key.metadata("print"))
    return name


def test_jobs_of_tasks(ray: FakeRay, show: Callable[..., str]) -> None:
    first = submit(ray, "label", status="FAILED")
    second = submit(ray, "judge", 3, seconds=1000.0)
    ray.jobs[first].started -= 185
    ray.submit(entrypoint="python", submission_id="someone-elses")
    lines = [json.loads(line) for line in show("status", "--format", "jsonl").splitlines()]
    assert [(one["submission_id"], one["task"], one["state"]) for one in lines] == [
        (second, "nightly.judge[3]", "RUNNING"), (first, "nightly.label", "FAILED"),
    ]  # fmt: skip
    assert re.fullmatch(r"3 min \d+ s", lines[1]["duration"])
    assert lines[1]["run"] == "scheduled__2026"
    table = show("status", "--limit", "1")
    assert second in table
    assert first not in table
    assert "1 of 2 jobs at " in table


def test_a_narrow_table_has_ids_as_logs_wants_them(
    ray: FakeRay, show: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    names = [submit(ray, "a_task_with_a_long_name", number) for number in range(2)]
    shown = show("status")
    assert all(name in shown for name in names)
    head, _, row = shown.splitlines()[:3]
    assert head.split() == ["submission_id", "state", "duration"]
    assert row.split()[1] in {"RUNNING", "PENDING", "SUCCEEDED"}
    assert "Not shown: task, run, start; --format jsonl shows all." in shown
    monkeypatch.setenv("COLUMNS", "60")
    assert all(name in show("status") for name in names)


def test_a_cluster_without_jobs(ray: FakeRay, show: Callable[..., str]) -> None:
    assert "0 of 0 jobs" in show("status", "ray_default")


def test_log(ray: FakeRay, show: Callable[..., str]) -> None:
    notice = events.line(events.Notice(level="info", message="loading the model"), KEY, 0)
    name = submit(ray, "label", lines=["\x1b[31mfirst", notice, "last"])
    assert show("logs", name).splitlines() == ["first", "loading the model", "last"]
    assert show("logs", name, "--lines", "1").splitlines() == ["last"]
    assert "::raybatch::" in show("logs", name, "--raw")
    assert show("logs", name, "--follow").splitlines() == ["first", "loading the model", "last"]


def test_following_a_job_that_fails(
    ray: FakeRay, show: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = submit(ray, "label", lines=["first"], status="FAILED", message="it broke")
    with pytest.raises(SystemExit) as caught:
        show("logs", name, "--follow")
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == ["first"]
    assert err.count("\n") == 1


def test_an_unknown_job(show: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        show("logs", "nothing")
    assert "knows no job 'nothing'; `raybatch status` lists" in capsys.readouterr().err


def test_a_number_of_lines_that_is_none(show: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    for number in ("0", "-5"):
        with pytest.raises(SystemExit):
            show("logs", "nothing", "--lines", number)
        assert capsys.readouterr().err == f"lines: it must be at least 1, but it is {number}.\n"


@pytest.mark.parametrize(
    ("verb", "host", "said"),
    [
        (("status",), "local", "'local' names no cluster"),
        (("logs", "x"), "local", "'local' names no cluster"),
        (("engines",), "local", "'local' names no cluster"),
        (("status",), "127.0.0.1", "127.0.0.1:1"),
    ],
)
def test_clusters_that_do_not_answer(
    verb: tuple[str, ...],
    host: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection = {"conn_type": "ray", "host": host, "port": 1, "extra": {"connect_timeout": 0.1}}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(connection))
    with pytest.raises(SystemExit) as caught:
        main([*verb, "gpus"])
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_warm_engines(ray: FakeRay, show: Callable[..., str]) -> None:
    entry = "Running entrypoint for job j: python -m airflow_provider_raybatch.job.warm_engines"
    ray.script = lambda _ray, _body: Script([entry, "no warm engine"])
    assert show("engines") == "no warm engine\n"
    (job,) = ray.jobs.values()
    assert job.body["entrypoint"] == "python -m airflow_provider_raybatch.job.warm_engines"
    show("engines", "ray_default", "--end")
    assert [one.body["entrypoint"].endswith(" --end") for one in ray.jobs.values()] == [False, True]
