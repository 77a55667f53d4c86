# SPDX-License-Identifier: Apache-2.0
"""The engine of one task judges in the next one, and is seen and ended from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.engine_log import engines

from ..conftest import RayCluster
from .inputs import batch
from .ray_jobs import RayJobs
from .rest import AirflowApi
from .waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("a warm engine through Airflow; resume/test_warm_engines runs always"),
]

TEXTS = [f"text {number}" for number in range(40)]


def command(cluster: RayCluster, *words: str) -> str:
    """What the command prints where Airflow's connection leads to this cluster."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "raybatch", "show", "--engines", *words],
        env={**os.environ, "AIRFLOW_CONN_RAY_DEFAULT": cluster.url.replace("http://", "ray://")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_the_next_task_takes_the_engine(
    api: AirflowApi, jobs: RayJobs, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    conf = batch(tmp_path, TEXTS, engine_args={"request_log": str(log)}, sampling={"temperature": 0})
    run = api.trigger("warm", **conf).wait(timeout=300)
    judged = open_dataset(run.task("judge").xcom()).to_arrow()["judged_response"].to_pylist()
    assert set(judged) == {f"Judge Say {text}" for text in TEXTS}
    used = engines(log)
    assert len(used) == 2
    (pid,) = {engine.pid for engine in used}
    assert "echo, made by warm.generate" in command(ray_cluster)
    assert "; ending" in command(ray_cluster, "--end")
    wait_for("its end", lambda: not psutil.pid_exists(pid), 60)
    assert "no warm engine" in command(ray_cluster)
