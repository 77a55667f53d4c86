# SPDX-License-Identifier: Apache-2.0
"""Bad input on a stand-in for a whole Kubernetes, over HTTP: one sentence each, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.kuberay.claim import ClusterPlan, claim_cluster
from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.counts import WorkerCounts
from airflow_provider_raybatch.cluster.kuberay.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.cluster.kuberay.lifecycle import attach, release
from airflow_provider_raybatch.cluster.kuberay.manifest import (
    ray_cluster_spec,
    rayjob_manifest,
    secret_manifest,
)
from airflow_provider_raybatch.cluster.kuberay.names import new_secret_name, rayjob_name, run_labels
from airflow_provider_raybatch.cluster.kuberay.rayjob import RayJobState
from airflow_provider_raybatch.cluster.kuberay.readiness import version_mismatch
from airflow_provider_raybatch.cluster.kuberay.role import KUEUE, role_rules
from airflow_provider_raybatch.cluster.kuberay.waiting import ClusterNotReadyError, wait_for_cluster
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.credentials import write_kubeconfig
from tests.support.kubernetes.nodes import Node
from tests.support.kubernetes.world import World, world

pytest.importorskip("kubernetes_asyncio")

IMAGE = "rayproject/ray:2.60.0"
PLAIN: dict[str, Any] = {"image": IMAGE, "gpus_per_worker": 0}
ONE_GPU = WorkerCounts(1, 1, 1)
NO_WORKERS = WorkerCounts(0, 0, 0)
TOKEN = "ab" * 32
USER, STALLED = FailureClass.USER_ERROR, FailureClass.STALLED


class Task:
    """A task that takes a cluster, waits for it, and gives it back whatever happens."""

    def __init__(self, kubernetes: World, folder: Path, namespace: str = "default") -> None:
        self.kubernetes = kubernetes
        self.namespace = namespace
        self.lines: list[str] = []
        self.key = SubmissionKey(TaskKey(dag_id="d", run_id="r", task_id="t"), "try1-token")
        path = write_kubeconfig(folder / "kubeconfig", kubernetes.web.url, token="t", namespace="default")
        self.server = kubeconfig_server(Kubeconfig(str(path), shown="a kubeconfig"))

    def plan(self, cluster: KubeRayCluster, counts: WorkerCounts) -> ClusterPlan:
        def manifest_of(number: int) -> dict[str, Any]:
            secret = new_secret_name(rayjob_name(self.key, number))
            deadlines = {"pre_running_deadline": 120, "active_deadline": 3600}
            return rayjob_manifest(cluster, counts, self.key, number, "f", secret=secret, **deadlines)

        labels = run_labels(self.key)
        secret_of = lambda claim: secret_manifest(claim, TOKEN, labels)  # noqa: E731
        return ClusterPlan("f", manifest_of, secret_of, 3600.0, 120, 120)

    async def sleep(self, seconds: float) -> None:
        self.kubernetes.server.clock.advance(seconds)
        await asyncio.sleep(0.05)

    async def version_of(self, cluster: KubeRayCluster) -> str | None:
        """Ask the head, and compare."""
        (head,) = self.kubernetes.runtime.heads.values()
        async with RayJobsClient(ClusterAddress(head.url, token=TOKEN)) as client:
            version = (await client.version()).ray_version
        if wrong := version_mismatch(cluster.ray_version, version, cluster.image or ""):
            raise ClusterNotReadyError(wrong, USER)
        return None

    async def take(self, cluster: KubeRayCluster, counts: WorkerCounts) -> RayJobState:
        async with KubernetesClient(self.server, self.namespace) as api:
            claimed = await claim_cluster(api, self.key, self.plan(cluster, counts))
            try:
                ready = await wait_for_cluster(
                    api,
                    claimed.claim,
                    answers=lambda _: self.version_of(cluster),
                    cluster_wait=60.0,
                    tell=self.lines.append,
                    sleep=self.sleep,
                    clock=self.kubernetes.server.clock.now,
                )
                await attach(api, claimed.claim, "a-job")
                return ready
            finally:
                with contextlib.suppress(ClusterError):
                    await release(api, claimed.claim, timeout=5.0)

    def run(self, cluster: KubeRayCluster, counts: WorkerCounts = NO_WORKERS) -> RayJobState:
        return asyncio.run(self.take(cluster, counts))

    def left(self) -> dict[str, int]:
        """What is there once all deadlines, and the time for which KubeRay keeps logs, are over."""
        for _ in range(2):
            self.kubernetes.server.clock.advance(4000)
            self.kubernetes.settle(8)
        kinds = ("RayJob", "RayCluster", "Pod", "Secret", "Service")
        return {kind: count for kind in kinds if (count := len(self.kubernetes.store.all(kind)))}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Task]]:
    """A task with these rights on a Kubernetes as given."""
    with contextlib.ExitStack() as stack:

        def start(rules: Any = None, namespace: str = "default", **given: Any) -> Task:
            kubernetes = stack.enter_context(world(**given))
            rights = role_rules(KUEUE) if rules is None else rules
            kubernetes.server.access.grant("airflow", rights, namespace=namespace, token="t")
            return Task(kubernetes, tmp_path, namespace)

        yield start


def refused(
    task: Task, cluster: KubeRayCluster | None = None, counts: WorkerCounts = NO_WORKERS
) -> ClusterError:
    """The one sentence of a failure."""
    with pytest.raises(ClusterError) as caught:
        task.run(cluster or KubeRayCluster(**PLAIN), counts)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    return caught.value


def test_good_input(started: Callable[..., Task]) -> None:
    task = started()
    assert task.run(KubeRayCluster(**PLAIN)).deployment_status == "Waiting"
    assert task.left() == {}


ARGUMENTS = [
    ("namespace", {"namespace": "Größe"}),
    ("namespace", {"namespace": "n" * 64}),
    ("kueue_queue", {"kueue_queue": "queue with spaces"}),
    ("labels", {"labels": {"team": "größe"}}),
    ("name", {"image": None, "name": "名前"}),
    ("spec", {"image": None, "spec": {"rayVersion": "2.60.0", "workerGroupSpecs": []}}),
]


@pytest.mark.parametrize(
    ("field", "given"), ARGUMENTS, ids=[f"{one[0]}{n}" for n, one in enumerate(ARGUMENTS)]
)
def test_argument_is_refused_before_anything_is_made(field: str, given: Mapping[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        ray_cluster_spec(KubeRayCluster(**{"image": IMAGE, **given}), NO_WORKERS)
    said = str(caught.value)
    assert field in said
    assert "\n" not in said


def test_names_of_a_task_may_have_any_length_and_letters(started: Callable[..., Task]) -> None:
    task = started()
    ids = {"dag_id": "größe " * 40, "run_id": "日本 " * 80, "task_id": "t" * 250}
    task.key = SubmissionKey(TaskKey(**ids), "try1-token")
    assert task.run(KubeRayCluster(**PLAIN)).deployment_status == "Waiting"
    assert task.left() == {}


def test_namespace_that_does_not_exist(started: Callable[..., Task]) -> None:
    task = started(namespace="mlops")
    error = refused(task)
    assert error.failure_class is USER
    assert str(error).startswith("namespace: there is no 'mlops' on the Kubernetes at http://127.0.0.1:")
    assert task.left() == {}


VERBS = [
    (verb, resource)
    for rule in role_rules()
    for resource in rule["resources"]
    for verb in rule["verbs"]
    if (verb, resource) not in {("delete", "rayjobs"), ("list", "rayclusters")}
]


@pytest.mark.parametrize(("verb", "resource"), VERBS)
def test_role_without_one_verb(started: Callable[..., Task], verb: str, resource: str) -> None:
    rules = [
        {**rule, "verbs": [one for one in rule["verbs"] if (one, rule["resources"]) != (verb, [resource])]}
        for rule in role_rules()
    ]
    # Events are asked for what is not ready yet, and on a busy machine the first look may find all ready.
    room = {"nodes": [Node("n1", capacity={"cpu": "1"})]} if resource == "events" else {}
    task = started(rules, **room)
    error = refused(task)
    assert error.failure_class is USER
    assert f"may not {verb} {resource}" in str(error)
    assert str(error).endswith(
        "; bind it to the Role in docs/kubernetes_role.yaml, or correct the namespace."
    )
    # Without get of rayjobs it can't be seen that it is gone, but it is.
    assert task.left() == {}


def test_role_that_may_not_delete_leaves_no_cluster(started: Callable[..., Task]) -> None:
    rules = [{**rule, "verbs": [one for one in rule["verbs"] if one != "delete"]} for rule in role_rules()]
    task = started(rules)
    assert task.run(KubeRayCluster(**PLAIN)).deployment_status == "Waiting"
    left = task.left()
    assert set(left) == {"RayJob", "Secret"}  # one that has ended, and its Secret


def test_image_that_no_registry_has(started: Callable[..., Task]) -> None:
    task = started()
    task.kubernetes.kubelet.bad_images[IMAGE] = (
        f'rpc error: code = NotFound desc = failed to resolve reference "{IMAGE}": not found'
    )
    error = refused(task)
    assert error.failure_class is USER
    assert f"of image {IMAGE}: ImagePullBackOff: " in str(error)
    assert str(error).endswith("not found; correct image.")
    assert task.left() == {}


def test_image_without_ray(started: Callable[..., Task], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.kubernetes.kubelet import Running

    task = started()
    monkeypatch.setattr(task.kubernetes.runtime, "look", lambda pod: Running(ready=False, exit_code=127))
    error = refused(task)
    assert error.failure_class is USER
    assert f"found no Ray (exit code 127); use an image that has Ray; it is {IMAGE}." in str(error)
    assert task.left() == {}


def test_image_with_another_ray(started: Callable[..., Task]) -> None:
    task = started()
    error = refused(task, KubeRayCluster(image="mirror/ray:2.58.0", gpus_per_worker=0, ray_version="2.58.0"))
    assert error.failure_class is USER
    assert str(error) == (
        "ray_version: it is '2.58.0', but image mirror/ray:2.58.0 has Ray 2.60.0; set it to the "
        "image's version."
    )
    assert task.left() == {}


def test_gpus_that_no_node_has(started: Callable[..., Task]) -> None:
    task = started(nodes=[Node("n1"), Node("n2")])
    error = refused(task, KubeRayCluster(image=IMAGE, accelerator_type="H100"), ONE_GPU)
    assert error.failure_class is STALLED
    assert str(error).startswith(
        "cluster_wait: the cluster was not ready within 1 min 0 s; 1 worker pod of group "
    )
    assert "waits for a node: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in str(error)
    assert task.left() == {}


def test_queue_that_does_not_exist(started: Callable[..., Task]) -> None:
    task = started(kueue=True)
    error = refused(task, KubeRayCluster(**PLAIN, kueue_queue="nowhere"))
    assert error.failure_class is USER
    assert "can't be admitted by Kueue: LocalQueue nowhere doesn't exist; correct kueue_queue" in str(error)
    assert task.left() == {}


def test_queue_that_gets_quota_in_time(started: Callable[..., Task]) -> None:
    task = started(kueue=True)
    task.kubernetes.kueue.queues["ml"] = {"cpu": 1.0}
    sleep = task.sleep

    async def raise_quota(seconds: float) -> None:
        await sleep(seconds)
        if any("insufficient unused quota for cpu" in line for line in task.lines):
            task.kubernetes.kueue.queues["ml"] = {"cpu": 64.0}

    task.sleep = raise_quota  # type: ignore[method-assign]
    task.run(KubeRayCluster(**PLAIN, kueue_queue="ml"))
    assert "waits for Kueue to admit it from the queue 'ml': couldn't assign flavors" in "".join(task.lines)
    assert task.left() == {}


def test_token_that_has_expired(started: Callable[..., Task]) -> None:
    task = started()
    task.kubernetes.server.access.revoke("t")
    error = refused(task)
    assert error.failure_class is USER
    assert "does not accept the credentials of a kubeconfig (401: Unauthorized)" in str(error)
    assert task.left() == {}


def test_token_that_expires_while_the_cluster_comes(started: Callable[..., Task]) -> None:
    """It can't be deleted then: KubeRay's deadlines end it."""
    task = started(nodes=[Node("n1", capacity={"cpu": "1"})])
    sleep = task.sleep

    async def expire(seconds: float) -> None:
        task.kubernetes.server.access.revoke("t")
        await sleep(seconds)

    task.sleep = expire  # type: ignore[method-assign]
    assert "they are wrong or have expired" in str(refused(task))
    assert set(task.left()) == {"RayJob", "Secret"}


@pytest.mark.parametrize("hours", [-30_000.0, 30_000.0])
def test_clock_that_is_off(started: Callable[..., Task], hours: float) -> None:
    task = started(clock=Clock(shift=hours * 3600))
    assert task.run(KubeRayCluster(**PLAIN)).deployment_status == "Waiting"
    task = started(clock=Clock(shift=hours * 3600), nodes=[Node("n1", capacity={"cpu": "1"})])
    assert "cluster_wait: the cluster was not ready within 1 min 0 s" in str(refused(task))
    assert task.left() == {}


def test_two_airflows_with_the_same_ids(started: Callable[..., Task]) -> None:
    """Their clusters have other names, unless someone gives both one id; then the run's token decides."""
    here, there = (TaskKey(namespace=name, dag_id="d", run_id="r", task_id="t") for name in ("a", "b"))
    names = {
        rayjob_name(SubmissionKey(task, token), 0)
        for task in (here, there)
        for token in ("try1-one", "try1-other")
    }
    assert len(names) == 4
    assert (
        run_labels(SubmissionKey(here, "x")).items() & run_labels(SubmissionKey(there, "x")).items() == set()
    )
    task = started()
    made = task.plan(KubeRayCluster(**PLAIN), NO_WORKERS).manifest_of(0)
    made["metadata"]["annotations"]["raybatch/run-token"] = "try1-of-the-other"
    task.kubernetes.server.create(task.kubernetes.server.admin, "RayJob", "default", made)
    error = refused(task)
    assert error.failure_class is USER
    assert "delete it, and clear the task." in str(error)
    assert len(task.kubernetes.store.all("RayJob")) == 1
