# SPDX-License-Identifier: Apache-2.0
"""Warm engines of a connection's cluster."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from airflow_provider_raybatch.cli.definition import main
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


@pytest.mark.parametrize(
    ("host", "said"), [("local", "'local' names no cluster"), ("127.0.0.1", "127.0.0.1:1")]
)
def test_clusters_that_do_not_answer(
    host: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = {"conn_type": "ray", "host": host, "port": 1, "extra": {"connect_timeout": 0.1}}
    monkeypatch.setenv("AIRFLOW_CONN_GPUS", json.dumps(connection))
    with pytest.raises(SystemExit) as caught:
        main(["engines", "gpus"])
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
