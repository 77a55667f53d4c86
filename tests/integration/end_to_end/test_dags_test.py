# SPDX-License-Identifier: Apache-2.0
"""``airflow dags test``, with which authors try a DAG, runs tasks and triggers in one process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .inputs import batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.thorough("airflow dags test on a Ray; unit/operators/dag_runs runs such DAGs always"),
]


def test_deferrable_task(airflow, api, jobs, tmp_path):
    # `dags test` writes its run to the database. If the DAG is not paused, a scheduler also runs the tasks of
    # that run, and one of the two gets a 409.
    api.pause("batch_deferrable")
    conf = batch(tmp_path, ["one", "two"])
    command = ["-m", "airflow", "dags", "test", "batch_deferrable", "--conf", json.dumps(conf)]
    completed = subprocess.run(
        [sys.executable, *command],
        env=airflow.environment,
        cwd=airflow.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output
    assert "was not found" not in output
    rows = open_dataset(f"{conf['destination']}/manifest.json").to_arrow()["response"].to_pylist()
    assert sorted(rows) == ["Say one", "Say two"]
