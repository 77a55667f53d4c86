# SPDX-License-Identifier: Apache-2.0
"""The argument `ray_cluster`: what it takes, and a running cluster that it names."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.manifest import ray_cluster_spec
from airflow_provider_raybatch.kubernetes.kuberay.pods import WorkerCounts
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, left
from tests.support.fake_ray import lasting
from tests.support.kubernetes.own_clusters import deferral, fired, go_on, heads, objects
from tests.support.kubernetes.role import BY_NAME, PROXY, role_rules
from tests.support.kubernetes.world import World


def test_a_connection_beside_a_cluster_is_refused(cluster: KubeRayCluster) -> None:
    with pytest.raises(SpecError, match=r"ray_cluster: ray_conn_id 'gpus' is given, too"):
        batch(ray_cluster=cluster, ray_conn_id="gpus")
    batch(ray_cluster=cluster, ray_conn_id=None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"imagee": "x"}, "ray_cluster: imagee: it is not an argument"),
        ("big", "ray_cluster: 'big' is not a cluster"),
        ({"image": "x:2.60.0", "workers": "many"}, "ray_cluster: workers"),
    ],
)
def test_what_is_no_cluster_is_refused(run: Run, given: Any, said: str) -> None:
    with pytest.raises(RayBatchException, match=said):
        left(batch(), ray_cluster=given).execute(run.context())


def test_an_xcom_may_hold_the_arguments_of_a_cluster(
    kubernetes: World, run: Run, cluster: KubeRayCluster
) -> None:
    left(batch(engine="echo", model=None), ray_cluster=cluster.serialize()).execute(run.context())
    assert len(heads(kubernetes)) == 1
    assert objects(kubernetes) == []


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_named_cluster_is_used_and_stays(
    kubernetes: World, run: Run, cluster: KubeRayCluster, deferrable: bool
) -> None:
    kubernetes.runtime.script = lasting(requests=6)
    spec = ray_cluster_spec(cluster, WorkerCounts(0, 0, 1))
    manifest = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "shared"}, "spec": spec}
    kubernetes.server.create(kubernetes.server.admin, "RayCluster", "default", manifest)
    rules = role_rules(PROXY, BY_NAME)
    kubernetes.server.access.grant("airflow", rules, namespace="default", token="of-airflow")
    kubernetes.settle()
    operator = RayJobOperator(
        task_id="t",
        entrypoint="true",
        ray_cluster=KubeRayCluster(name="shared"),
        deferrable=deferrable,
        poll_interval=0.05,
    )
    resumed = fired(deferral(operator, run)) if deferrable else None
    result = go_on(operator, run, resumed)
    assert result["status"] == "SUCCEEDED"
    assert "ray_cluster" not in result
    assert [one.split()[0] for one in objects(kubernetes)] == ["RayCluster", "Pod"]


def test_triggers_of_before_are_read() -> None:
    trigger = RayJobTrigger(ray_conn_id="ray_default", submission_id="x")
    arguments = trigger.serialize()[1]
    del arguments["ray_cluster"]
    assert RayJobTrigger(**arguments).ray_cluster is None
