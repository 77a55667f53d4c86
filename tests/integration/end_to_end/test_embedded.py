# SPDX-License-Identifier: Apache-2.0
"""Mapped tasks without a cluster: each starts a private Ray in turn, and leaves nothing behind."""

from __future__ import annotations

from datetime import datetime

import psutil
import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .inputs import batch
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

INDICES = (0, 1)


@pytest.fixture(scope="module")
def tasks(api, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mapped")
    sources = [batch(folder, [str(index)] * 10, name=f"rows_{index}")["source"] for index in INDICES]
    api.connection("ray_private", "ray", host="local")
    conf = {"ray_conn_id": "ray_private", "source": sources, "destination": f"{folder}/out"}
    run = api.trigger("mapped", **conf).wait(timeout=800)
    return [run.task("infer", index) for index in INDICES]


def test_each_has_its_dataset(tasks):
    for index, task in zip(INDICES, tasks, strict=True):
        result = task.xcom()
        assert open_dataset(result).to_arrow()["response"].to_pylist() == [f"Say {index}"] * 10
        assert result["dashboard_url"] is None
        assert task.read()["try_number"] == 1


def test_one_waits_for_the_other(tasks):
    logs = [task.log_events() for task in tasks]
    waited = [any("waiting for it to end" in event["event"] for event in log) for log in logs]
    assert sorted(waited) == [False, True]
    first, second = sorted(logs, key=lambda log: time_of(log, "Starting a private Ray"))
    assert time_of(first, "rows committed at") < time_of(second, "Starting a private Ray")


def time_of(log, text):
    return next(datetime.fromisoformat(event["timestamp"]) for event in log if text in event["event"])


def test_nothing_is_left(tasks, airflow):
    wait_for("empty temporary folder", lambda: not list(airflow.temp.glob("rb-*")), 30)
    left = [process for process in psutil.process_iter(["cmdline"]) if str(airflow.temp) in command(process)]
    assert not left


def command(process):
    return " ".join(process.info["cmdline"] or ())
