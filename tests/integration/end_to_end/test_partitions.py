# SPDX-License-Identifier: Apache-2.0
"""A night's `partition_key` passes from the run through the outlet's event to the consumer's run."""

from __future__ import annotations

import json

import pytest

from .ray_jobs import RayJobs
from .rest import AirflowApi
from .stack import AirflowStack
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONSUMER = "after_each_night"


def test_a_consumer_runs_once_for_each_night(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs) -> None:
    folder = airflow.home / "partitions"
    folder.mkdir()
    api.unpause(CONSUMER)
    nights = {}
    for night in ("2026-01-30", "2026-01-31"):
        (folder / f"night={night}.jsonl").write_text(json.dumps({"company": f"one of {night}"}) + "\n")
        nights[night] = api.trigger("each_night", partition_key=night)
    written = {
        night: run.wait(timeout=300).task("label").xcom()["manifest_uri"] for night, run in nights.items()
    }
    two = wait_for(
        "two runs of the consumer", lambda: api.runs(CONSUMER)[1:] and api.runs(CONSUMER), 180, api.evidence
    )
    read = [run.wait(timeout=300).task("load").xcom() for run in two]
    assert sorted(read) == sorted([night, manifest] for night, manifest in written.items())
    assert all(f"night={night}" in manifest for night, manifest in written.items())
