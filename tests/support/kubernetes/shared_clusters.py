# SPDX-License-Identifier: Apache-2.0
"""A DAG run on a STAND-IN for a Kubernetes whose tasks share a cluster, one task at a time."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import RayJobState, rayjob_state
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from tests.support.airflow_tasks import Run
from tests.support.batches import batch
from tests.support.kubernetes.own_clusters import deferral, fired, go_on
from tests.support.kubernetes.role import LEASED_CLUSTERS, PROXY, role_rules
from tests.support.kubernetes.world import World

LEASE = 600.0


def allow_sharing(kubernetes: World) -> None:
    """Let tasks read the Secret of the cluster that they share."""
    rules = role_rules(PROXY, LEASED_CLUSTERS)
    kubernetes.server.access.grant("airflow", rules, namespace="default", token="of-airflow")


def creates(**arguments: Any) -> CreateRayCluster:
    cluster = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0)
    return CreateRayCluster(**{"task_id": "create", "ray_cluster": cluster, "lease": LEASE, **arguments})


def created(run: Run | None = None, **arguments: Any) -> dict[str, Any]:
    """Return what the setup task returns, as the next task gets it from its XCom."""
    found = creates(**arguments).execute((run or Run(task_id="create")).context())
    return dict(json.loads(json.dumps(found)))


def used(cluster: Any, task_id: str, *, deferrable: bool = False, run: Run | None = None) -> Any:
    """Run a batch inference on the cluster."""
    operator = batch(
        engine="echo", model=None, ray_cluster=cluster, task_id=task_id, deferrable=deferrable,
        destination=f"s3://lake/{task_id}/",
    )  # fmt: skip
    run = run or Run(task_id=task_id)
    resumed = fired(deferral(operator, run)) if deferrable else None
    return go_on(operator, run, resumed)


def deleted(cluster: Any) -> None:
    operator = DeleteRayCluster(task_id="delete", ray_cluster=cluster)
    operator.execute(Run(task_id="delete").context())


def rayjob(kubernetes: World) -> RayJobState:
    (found,) = kubernetes.store.all("RayJob")
    return rayjob_state(found)


def seconds_left(kubernetes: World) -> float:
    """Return after how many seconds KubeRay ends the cluster, unless a task uses it."""
    one = rayjob(kubernetes)
    assert one.started is not None
    assert one.pre_running_deadline is not None
    return one.started + one.pre_running_deadline - kubernetes.server.clock.now()
