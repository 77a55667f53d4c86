# SPDX-License-Identifier: Apache-2.0
"""RayJobOperator runs any entrypoint, for users of the discontinued provider."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.fake_ray import FakeRay, lasting


def test_everything_arrives(ray: FakeRay, run: Run, tmp_path: Any) -> None:
    (tmp_path / "job.py").write_text("print('hello')\n")
    runtime_env = {"working_dir": str(tmp_path), "env_vars": {"A": "1"}}
    RayJobOperator(
        task_id="t", entrypoint="python job.py", runtime_env=runtime_env, entrypoint_num_cpus=1,
        entrypoint_resources={"x": 2}, entrypoint_label_selector={"zone": "a"}, metadata={"team": 7},
        poll_interval=0.05,
    ).execute(run.context())  # fmt: skip
    (job,) = ray.jobs.values()
    assert job.body["entrypoint"] == "python job.py"
    assert job.body["runtime_env"]["working_dir"].startswith("gcs://_ray_pkg_")
    assert job.body["runtime_env"]["env_vars"] == {"A": "1"}
    assert (job.body["entrypoint_num_cpus"], job.body["entrypoint_resources"]) == (1, {"x": 2})
    assert job.body["entrypoint_label_selector"] == {"zone": "a"}
    assert job.body["metadata"]["team"] == "7"
    assert runtime_env == {"working_dir": str(tmp_path), "env_vars": {"A": "1"}}


def test_can_go_on_without_waiting(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    operator = RayJobOperator(task_id="t", entrypoint="x", wait_for_completion=False, deferrable=True)
    result = operator.execute(run.context())
    assert (result["status"], ray.active) == ("RUNNING", [result["submission_id"]])
