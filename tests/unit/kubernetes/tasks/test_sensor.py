# SPDX-License-Identifier: Apache-2.0
"""A sensor of a job whose cluster was made for it asks Kubernetes alone."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.sweep import RunFate, judge_leftover, leftover_of
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support.airflow_tasks import Run
from tests.support.fake_ray import Script
from tests.support.kubernetes.own_clusters import deferral, fired, go_on, heads
from tests.support.kubernetes.world import World


def submitted(run: Run, cluster: KubeRayCluster) -> Any:
    return RayJobOperator(
        task_id="t", entrypoint="true", ray_cluster=cluster, wait_for_completion=False
    ).execute(run.context())


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
def test_sensor_follows_the_rayjob(
    kubernetes: World, cluster: KubeRayCluster, deferrable: bool, status: str
) -> None:
    kubernetes.runtime.script = lambda ray, body: Script(requests=6, status=status)
    result = submitted(Run(), cluster)
    assert "token" not in str(result).lower()
    sensor = RayJobSensor(
        task_id="s", submission_id=result, poke_interval=0.1, timeout=60, deferrable=deferrable
    )
    run = Run()

    def followed() -> Any:
        return go_on(sensor, run, fired(deferral(sensor, run)) if deferrable else None)

    if status == "FAILED":
        with pytest.raises(RayBatchException, match="failed"):
            followed()
    else:
        assert followed()["status"] == "SUCCEEDED"
    jobs = list(heads(kubernetes)[0].jobs)
    assert jobs == [result["submission_id"]]


def test_a_result_that_names_no_cluster_is_refused() -> None:
    given = {"submission_id": "x", "ray_cluster": {"name": None}}
    sensor = RayJobSensor(task_id="s", submission_id=given)
    with pytest.raises(RayBatchException, match="is not what a RayJobOperator returned"):
        sensor.execute(Run().context())


def test_sweeper_keeps_a_job_that_its_task_does_not_wait_for(
    kubernetes: World, cluster: KubeRayCluster
) -> None:
    kubernetes.runtime.script = lambda ray, body: Script(seconds=600)
    submitted(Run(), cluster)
    kubernetes.settle()
    (rayjob,) = kubernetes.store.all("RayJob")
    found, namespace = leftover_of(rayjob), "this-airflow"
    is_left, why = judge_leftover(found, RunFate(state="success"), namespace, found.created + 3600)
    assert not is_left
    assert "does not wait" in why
