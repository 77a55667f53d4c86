# SPDX-License-Identifier: Apache-2.0
"""A cluster that tasks share: made once, kept by its users' looks, ended by a task or by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters import heartbeat, leased
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run
from tests.support.batches import Died, batch, die, left
from tests.support.fake_ray import lasting
from tests.support.kubernetes.own_clusters import (
    claims,
    heads,
    objects,
)
from tests.support.kubernetes.role import LEASED_CLUSTERS, PROXY, role_rules
from tests.support.kubernetes.shared_clusters import (
    LEASE,
    allow_sharing,
    created,
    creates,
    deleted,
    rayjob,
    seconds_left,
    used,
)
from tests.support.kubernetes.world import World


@pytest.fixture(autouse=True)
def rights(kubernetes: World) -> None:
    allow_sharing(kubernetes)


@pytest.fixture
def setup() -> Run:
    return Run(task_id="create")


@pytest.mark.parametrize("deferrable", [False, True])
def test_two_tasks_run_on_one_cluster(kubernetes: World, setup: Run, deferrable: bool) -> None:
    kubernetes.runtime.script = lasting(requests=6)
    cluster = created(setup)
    for name in ("generate", "judge"):
        assert used(cluster, name, deferrable=deferrable)["rows"] == 2
    (ray,) = heads(kubernetes)
    assert len(ray.jobs) == 2
    assert [one.split()[0] for one in objects(kubernetes)] == ["RayJob", "RayCluster", "Secret", "Pod"]
    deleted(cluster)
    assert objects(kubernetes) == []
    assert len(claims(kubernetes)) == 1


def test_no_secret_leaves_the_task(kubernetes: World, setup: Run, caplog: pytest.LogCaptureFixture) -> None:
    cluster = created(setup)
    used(cluster, "generate")
    (ray,) = heads(kubernetes)
    assert ray.token
    assert ray.token not in str(cluster) + str(setup.xcoms) + caplog.text


def test_a_dead_worker_has_one_successor_and_one_cluster(
    kubernetes: World, setup: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(leased, "wait_until_ready", die)
        with pytest.raises(Died):
            created(setup)
    setup.try_number += 1
    created(setup)
    assert len(claims(kubernetes)) == len(heads(kubernetes)) == 1


def test_a_clear_adopts_the_cluster_and_its_token(kubernetes: World, setup: Run) -> None:
    """Airflow may have dropped all that the first attempt knew."""
    first = created(setup)
    used(first, "generate")
    kubernetes.server.clock.advance(3 * LEASE / 4)
    setup.clear()
    assert created(setup) == first
    assert used(first, "judge")["rows"] == 2
    assert len(heads(kubernetes)) == 1


def test_other_arguments_replace_the_cluster(kubernetes: World, setup: Run) -> None:
    first = created(setup)
    setup.clear()
    other = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0, workers=1)
    second = created(setup, ray_cluster=other)
    assert second["claim"]["uid"] != first["claim"]["uid"]
    assert len(kubernetes.store.all("RayJob")) == 1
    assert created(setup, ray_cluster=other, lease=2 * LEASE)["claim"] == second["claim"]


def test_an_adopted_cluster_that_is_lost_is_replaced(kubernetes: World, setup: Run) -> None:
    first = created(setup)
    kubernetes.server.delete(
        kubernetes.server.admin, "RayCluster", "default", first["name"], propagation="Foreground"
    )
    setup.clear()
    second = created(setup)
    assert second["claim"]["uid"] != first["claim"]["uid"]
    assert used(second, "generate")["rows"] == 2


def test_the_lease_counts_from_the_moment_it_is_ready(kubernetes: World, setup: Run) -> None:
    created(setup)
    assert LEASE < seconds_left(kubernetes) <= 1.5 * LEASE + 2


@pytest.mark.parametrize("deferrable", [False, True])
def test_each_task_renews_the_lease(
    kubernetes: World, setup: Run, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """At its start and at its looks: a job that takes many leases keeps its cluster."""
    monkeypatch.setattr(heartbeat, "_PAUSE", 0.0)
    cluster = created(setup)
    kubernetes.server.clock.advance(1.2 * LEASE)

    def script(ray: Any, body: Any) -> Any:
        assert seconds_left(kubernetes) > LEASE
        for _ in range(4):
            ray.at_poll(2, lambda: kubernetes.server.clock.advance(LEASE))
        return lasting(requests=30)(ray, body)

    kubernetes.runtime.script = script
    (ray,) = heads(kubernetes)
    ray.script = script
    began = kubernetes.server.clock.now()
    assert used(cluster, "generate", deferrable=deferrable)["rows"] == 2
    assert kubernetes.server.clock.now() > began + 3 * LEASE
    assert rayjob(kubernetes).living


def test_without_a_user_the_cluster_ends_itself(kubernetes: World, setup: Run) -> None:
    cluster = created(setup)
    kubernetes.server.clock.advance(0.9 * LEASE)
    kubernetes.settle()
    assert rayjob(kubernetes).living
    kubernetes.server.clock.advance(0.7 * LEASE)
    kubernetes.settle(40)
    assert {one.split()[0] for one in objects(kubernetes)} <= {"RayJob", "Secret"}
    with pytest.raises(RayBatchFailException, match=r"is gone, its lease is over.*clear the task 'create'"):
        used(cluster, "generate")
    setup.clear()
    assert used(created(setup), "generate")["rows"] == 2


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_whose_cluster_goes_says_what_to_do(
    kubernetes: World, setup: Run, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setattr(heartbeat, "_PAUSE", 0.0)
    monkeypatch.setattr(heartbeat, "_SILENT_PAUSE", 0.0)
    cluster = created(setup)

    def script(ray: Any, body: Any) -> Any:
        ray.at_poll(2, lambda: _delete_rayjob(kubernetes))
        return lasting(600)(ray, body)

    heads(kubernetes)[0].script = script
    with pytest.raises(RayBatchFailException, match=r"RayJob was deleted.*clear the task 'create'"):
        used(cluster, "generate", deferrable=deferrable)


def _delete_rayjob(kubernetes: World) -> None:
    name = rayjob(kubernetes).name
    kubernetes.server.delete(kubernetes.server.admin, "RayJob", "default", name, propagation="Foreground")


def test_a_silent_kubernetes_ends_no_job(kubernetes: World, setup: Run) -> None:
    cluster = created(setup)

    def narrow() -> None:
        rules = [one for one in role_rules(PROXY, LEASED_CLUSTERS) if "rayjobs" not in one["resources"]]
        kubernetes.server.access.grant("airflow", rules, namespace="default", token="of-airflow")

    def script(ray: Any, body: Any) -> Any:
        ray.at_poll(1, narrow)
        return lasting(requests=6)(ray, body)

    heads(kubernetes)[0].script = script
    assert used(cluster, "generate")["rows"] == 2


def test_other_jobs_use_it_too(kubernetes: World, setup: Run) -> None:
    operator = RayJobOperator(task_id="t", entrypoint="true", ray_cluster=created(setup), poll_interval=0.05)
    result = operator.execute(Run().context())
    assert result["status"] == "SUCCEEDED"
    assert rayjob(kubernetes).living


def test_deleting_again_changes_nothing(kubernetes: World, setup: Run) -> None:
    cluster = created(setup)
    deleted(cluster)
    deleted(cluster)
    setup.clear()
    created(setup)
    deleted(cluster)  # a teardown that comes late does not meet the next cluster
    assert rayjob(kubernetes).living


def test_teardown_of_a_failed_setup_is_a_success(kubernetes: World) -> None:
    deleted(None)
    assert objects(kubernetes) == []


def test_a_setup_that_can_not_succeed_leaves_nothing(kubernetes: World, setup: Run) -> None:
    kubernetes.kubelet.bad_images["rayproject/ray:2.60.0"] = "not found"
    with pytest.raises(RayBatchException, match="image"):
        creates().execute(setup.context())
    assert objects(kubernetes) == []


def test_without_the_right_to_read_secrets_nothing_stays(kubernetes: World, setup: Run) -> None:
    kubernetes.server.access.grant("airflow", role_rules(PROXY), namespace="default", token="of-airflow")
    with pytest.raises(RayBatchFailException, match="to get Secret"):
        created(setup)
    kubernetes.settle()
    assert objects(kubernetes) == []


@pytest.mark.parametrize(
    ("state", "stays"), [("failed", False), ("restarting", False), ("running", True), ("success", True)]
)
def test_a_kill_deletes_what_a_user_ended(
    kubernetes: World, setup: Run, monkeypatch: pytest.MonkeyPatch, state: str, stays: bool
) -> None:
    asked = {"r": {"create": state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **given: asked)
    operator = creates()

    def killed(*given: Any) -> Any:
        operator.on_kill()
        raise Died

    monkeypatch.setattr(leased, "wait_until_ready", killed)
    with pytest.raises(Died):
        operator.execute(setup.context())
    kubernetes.settle()
    assert bool(objects(kubernetes)) is stays


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ray_cluster": KubeRayCluster(name="prod")}, "its name 'prod' is that of a running cluster"),
        ({"ray_cluster": None}, "ray_cluster: it is missing"),
        ({"ray_cluster": 5}, "5 is not a cluster"),
        ({"lease": 5}, "lease: it must be 120 to 31536000 seconds, but it is 5"),
        ({"lease": "soon"}, "lease: "),
        ({"lease": timedelta(days=366)}, r"lease: it must be .*, but it is 3.16224e\+07"),
        ({"lease": 1e300}, r"lease: it must be .*, but it is 1e\+300"),
    ],
)
def test_bad_argument_is_refused_at_parse(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=f"Task 'create': .*{told}"):
        creates(**given)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (KubeRayCluster(name="prod"), "was not made by a CreateRayCluster"),
        ("prod", "'prod' is not a cluster"),
        ({"name": "prod"}, "was not made by a CreateRayCluster"),
        ({"lease": 5, "name": "prod"}, "is not what a CreateRayCluster returned"),
    ],
)
def test_only_what_was_made_is_deleted(value: Any, told: str) -> None:
    with pytest.raises(SpecError, match=f"Task 'delete': .*{told}"):
        DeleteRayCluster(task_id="delete", ray_cluster=value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"lease": 600, "claim": {}}, "is not what a CreateRayCluster returned"),
        (["prod"], "is not a cluster"),
        (None, "the task 'create' has returned no cluster; clear it"),
    ],
)
def test_a_task_refuses_what_is_no_cluster(kubernetes: World, run: Run, value: Any, told: str) -> None:
    """Nothing in place of a cluster must not mean the cluster of `ray_conn_id`."""
    with DAG("d", schedule=None):
        operator = batch(engine="echo", model=None, ray_cluster=creates().output)
    with pytest.raises(RayBatchFailException, match=told):
        left(operator, ray_cluster=value).execute(run.context())


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "taking",
    [
        lambda cluster: batch(engine="echo", model=None, ray_cluster=cluster),
        lambda cluster: RayJobOperator(task_id="t", entrypoint="true", ray_cluster=cluster),
        lambda cluster: creates(ray_cluster=cluster),
        lambda cluster: DeleteRayCluster(task_id="t", ray_cluster=cluster),
    ],
    ids=["batch", "job", "create", "delete"],
)
def test_a_task_is_not_what_it_returns(taking: Callable[[Any], Any], mapped: bool) -> None:
    """Airflow sees no dependency, so the cluster would not be there yet."""
    definition = KubeRayCluster(image="rayproject/ray:2.60.0")
    with DAG("d", schedule=None):
        partial_of = CreateRayCluster.partial
        setup = (
            partial_of(task_id="made", ray_cluster=definition).expand(lease=[300, 600])
            if mapped
            else creates(task_id="made")
        )
        with pytest.raises(
            SpecError, match="ray_cluster: it is the task 'made', and not the cluster that it"
        ):
            taking(setup)


def test_seldom_polls_would_lose_the_lease(kubernetes: World, setup: Run) -> None:
    cluster = created(setup)
    with pytest.raises(SpecError, match=r"poll_interval: with 400 s, the lease of 600 s"):
        batch(engine="echo", model=None, ray_cluster=cluster, poll_interval=400)
