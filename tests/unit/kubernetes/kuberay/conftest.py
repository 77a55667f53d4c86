# SPDX-License-Identifier: Apache-2.0
"""A namespace of the stand-in for a Kubernetes, without a controller: tests play KubeRay themselves."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay import claim, lifecycle
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClusterPlan
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import OF_RAYJOB
from airflow_provider_raybatch.kubernetes.kuberay.manifest import Deadlines, rayjob_manifest, secret_manifest
from airflow_provider_raybatch.kubernetes.kuberay.pods import WorkerCounts, worker_counts
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    ClusterClaim,
    run_labels,
)
from tests.support.kubernetes.clock import Clock, timestamp
from tests.support.kubernetes.garbage import collect_all
from tests.support.kubernetes.memory import MemoryKubernetes, set_status
from tests.support.kubernetes.server import ApiServer
from tests.unit.cluster.conftest import client, ray  # noqa: F401 - fixtures

TASK = TaskKey(dag_id="d", run_id="scheduled__2026-11-21T00:00:00+00:00", task_id="t")
KEY = SubmissionKey(TASK, "try1-token")
PRE_RUNNING, WINDOW, IDLE = 1860, 3600, 1800
DEADLINES = Deadlines(PRE_RUNNING, WINDOW)
CLUSTER = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0)
NO_WORKERS = WorkerCounts(0, 0, 1)


def plan(
    fingerprint: str = "f",
    key: SubmissionKey = KEY,
    cluster: KubeRayCluster = CLUSTER,
    counts: WorkerCounts = NO_WORKERS,
    **more: Any,
) -> ClusterPlan:
    """What a run wants."""

    def manifest_of(number: int) -> dict[str, Any]:
        return rayjob_manifest(cluster, counts, key, number, fingerprint, DEADLINES)

    return ClusterPlan(**{
        "fingerprint": fingerprint,
        "manifest_of": manifest_of,
        "secret_of": lambda claim: secret_manifest(claim, "ab" * 32, run_labels(key)),
        "window": WINDOW,
        "pre_running_deadline": PRE_RUNNING,
        "idle": IDLE,
        **more,
    })


def rayjob_of(cluster: KubeRayCluster, counts: WorkerCounts | None = None) -> dict[str, Any]:
    """The RayJob of a cluster, once it is rendered."""
    cluster.check()
    return rayjob_manifest(cluster, counts or worker_counts(None, cluster), KEY, 3, "print", DEADLINES)


class Kubernetes:
    """The server, its objects, and KubeRay's part of them."""

    def __init__(self, kuberay: str = "1.7.0") -> None:
        self.clock = Clock(start=1_700_000_000)
        self.server = ApiServer(kuberay=kuberay, clock=self.clock)
        self.api = MemoryKubernetes(self.server)

    def names(self, kind: str) -> list[str]:
        collect_all(self.server.store)
        return [found["metadata"]["name"] for found in self.server.store.all(kind)]

    def hold(self, name: str) -> None:
        """Let a finalizer hold a RayJob, as long as KubeRay's operator is away."""
        self._finalizers(name, ["ray.io/rayjob-finalizer"])

    def let_go(self, name: str) -> None:
        self._finalizers(name, None)

    def _finalizers(self, name: str, finalizers: list[str] | None) -> None:
        found = self.server.store.find("RayJob", "default", name)
        assert found is not None
        kept = [one for one in found["metadata"].get("finalizers", ()) if not one.startswith("ray.io")]
        change = {"metadata": {"finalizers": [*kept, *(finalizers or ())]}}
        self.server.patch(self.server.admin, "RayJob", "default", name, change)

    def ray_cluster(self, claim: ClusterClaim, *, blocks: bool = True) -> str:
        """Create a RayJob's RayCluster, as KubeRay does; return its name."""
        name = f"{claim.name}-abcde"
        owner = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": claim.name, "uid": claim.uid}
        manifest = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {
                "name": name,
                "labels": {OF_RAYJOB: claim.name},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": blocks}],
            },
            "spec": plan().manifest_of(0)["spec"]["rayClusterSpec"],
        }
        self.server.create(self.server.admin, "RayCluster", "default", manifest)
        return name

    def status(self, name: str, deployment_status: str, **more: Any) -> None:
        """Do what KubeRay does: write a RayJob's status."""
        if deployment_status == "Initializing":
            more["startTime"] = timestamp(self.clock.now())
        set_status(self.server, "RayJob", name, {"jobDeploymentStatus": deployment_status, **more})


@pytest.fixture
def kubernetes() -> Kubernetes:
    return Kubernetes()


@pytest.fixture(autouse=True)
def fast_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_WAIT", 0.001)
    monkeypatch.setattr(lifecycle, "_WAIT", 0.001)
