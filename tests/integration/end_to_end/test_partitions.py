# SPDX-License-Identifier: Apache-2.0
"""A night's `partition_key` goes from the run through the outlet's event to the run of the consumer."""

from __future__ import annotations

import json

import pytest

from .ray_jobs import RayJobs
from .rest import AirflowApi
from .stack import AirflowStack
from .waiting import wait_for

pytestmark = [pytest.mark.slow]

CONSUMER = "after_each_night"


def test_a_consumer_runs_once_for_each_night(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs) -> None:
    folder = airflow.home / "partitions"
    folder.mkdir()
    api.unpause(CONSUMER)
    for before, night in enumerate(("2026-01-30", "2026-01-31")):
        (folder / f"night={night}.jsonl").write_text(json.dumps({"company": f"one of {night}"}) + "\n")
        run = api.trigger("each_night", partition_key=night).wait()
        started = wait_for("a run of the consumer", lambda n=before: api.runs(CONSUMER)[n:], 60, run.evidence)
        key, manifest = started[0].wait().task("load").xcom()
        assert key == night
        assert manifest == run.task("label").xcom()["manifest_uri"]
        assert f"night={night}" in manifest
    assert len(api.runs(CONSUMER)) == 2
