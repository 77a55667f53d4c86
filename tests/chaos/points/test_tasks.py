# SPDX-License-Identifier: Apache-2.0
"""A task and its trigger reach all their points, with Airflow's own task runner and a fake Ray."""

from __future__ import annotations

import json
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_provider_raybatch.cluster.submit import resolve as submission
from tests.support.airflow_tasks import airflow_db, dag_test, ray  # noqa: F401 - fixtures
from tests.support.fake_ray import FakeRay, lasting

from ..plan import MODES
from .catalogue import POINTS
from .striking import INSIDE

DAGS = Path(__file__).parents[1] / "dags" / "points.py"


@pytest.mark.parametrize("mode", MODES)
def test_in_the_order_of_the_catalogue(mode, ray: FakeRay, dag_test, tmp_path, monkeypatch):  # noqa: F811
    points = [point.name for point in POINTS.values() if not point.call and mode in point.modes]
    with suppress(ValueError):
        points.remove("after_yield")  # this runner takes one event of the trigger, and no second one
    monkeypatch.setattr(submission.stop_run, "__defaults__", submission.stop_run.__defaults__)
    monkeypatch.setattr(sys, "path", [str(INSIDE), str(DAGS.parent), *sys.path])
    monkeypatch.setenv("CHAOS_POLL_INTERVAL", "0.05")
    dag = runpy.run_path(str(DAGS))[f"points_{mode}"]
    given = {
        "source": "/in",
        "destination": "s3://lake/out/",
        "prompt": "Say {row.x}",
        # A signal without an effect.
        "aims": {"struck": str(tmp_path), "signals": dict.fromkeys(points, "CONT"), "keepers": []},
    }
    for params in (dag.params, dag.get_task("infer").params):
        params.update(given)
    ray.script = lasting(4)  # otherwise the job has ended, and the task does not defer
    assert dag_test(dag).state == "success"
    hits = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert [hit["point"] for hit in sorted(hits, key=lambda hit: hit["at"])] == points
