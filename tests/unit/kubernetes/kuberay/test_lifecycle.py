# SPDX-License-Identifier: Apache-2.0
"""Deadlines that a look extends and a kill shortens, and the end of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.kubernetes.kuberay.claim import claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import (
    attach,
    bound,
    extension,
    older,
    release,
    release_older,
    renew,
    shortening,
    state,
)
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim

from .conftest import KEY, TASK, WINDOW, Kubernetes, plan
from .test_decide import rayjob


async def claimed(kubernetes: Kubernetes, status: str = "Running") -> ClusterClaim:
    claim = (await claim_cluster(kubernetes.api, KEY, plan())).claim
    kubernetes.status(claim.name, "Initializing")
    kubernetes.status(claim.name, status)
    return claim


@pytest.mark.parametrize(
    ("left", "status", "change"),
    [
        (1000, "Running", {}),
        (667, "Running", {}),
        (666, "Running", {"activeDeadlineSeconds": 1500}),
        (-10, "Initializing", {"activeDeadlineSeconds": 1500}),
        (666, "Waiting", {"activeDeadlineSeconds": 1500, "preRunningDeadlineSeconds": 1500}),
        (666, "Suspended", {"activeDeadlineSeconds": 1000}),
        (400, "Suspended", {}),
    ],
)
def test_a_look_extends_what_is_less_than_two_thirds(left: int, status: str, change: dict[str, int]) -> None:
    """Also the deadline of a cluster that is ready: its job may run, though KubeRay was not told yet."""
    running = rayjob(
        deployment_status=status, started=100.0, active_deadline=500 + left, pre_running_deadline=500 + left
    )
    assert extension(running, 600.0, 1000) == change


def test_deadlines_are_not_extended_before_the_start() -> None:
    assert extension(rayjob(active_deadline=10), 600.0, 1000) == {}


def test_a_cluster_without_a_deadline_gets_one() -> None:
    assert extension(rayjob(started=0.0, deployment_status="Running"), 5.5, 10) == {
        "activeDeadlineSeconds": 16
    }


@pytest.mark.parametrize(
    ("started", "active", "pre_running", "change"),
    [
        (100.0, 3600, 1860, {"activeDeadlineSeconds": 530, "preRunningDeadlineSeconds": 530}),
        (100.0, 530, 500, {}),
        (100.0, None, 500, {"activeDeadlineSeconds": 530}),
        (None, 3600, 10, {"activeDeadlineSeconds": 30}),
        (10_000.0, 3600, 1860, {"activeDeadlineSeconds": 1, "preRunningDeadlineSeconds": 1}),
    ],
)
def test_a_kill_only_shortens_deadlines(
    started: float | None, active: int | None, pre_running: int, change: dict[str, int]
) -> None:
    """KubeRay keeps a cluster whose deadline is not positive: its clock may be ahead of the server's."""
    running = rayjob(started=started, active_deadline=active, pre_running_deadline=pre_running)
    assert shortening(running, 600.0, 30) == change


async def test_looks_go_by_the_servers_clock(kubernetes: Kubernetes) -> None:
    claim = await claimed(kubernetes)
    await attach(kubernetes.api, claim, "job-0")
    deadlines = []
    for _ in range(6):
        kubernetes.clock.advance(1000)
        seen = await renew(kubernetes.api, claim, WINDOW)
        assert seen is not None
        deadlines.append(seen.active_deadline)
    assert deadlines == [3600, 5600, 5600, 7600, 7600, 9600]
    patches = [
        one for one in kubernetes.server.faults.requests if one.verb == "patch" and not one.subresource
    ]
    assert len(patches) == 1 + 3


async def test_a_look_attaches_what_was_not_attached(kubernetes: Kubernetes) -> None:
    """Kubernetes did not answer when the job was submitted; a cluster without a job is ended soon."""
    claim = await claimed(kubernetes, "Waiting")
    seen = await renew(kubernetes.api, claim, WINDOW, "job-0")
    assert seen is not None
    assert seen.job_id == "job-0"
    again = await renew(kubernetes.api, claim, WINDOW, "job-1")
    assert again is not None
    assert again.job_id == "job-0"


async def test_a_kill_bounds_a_cluster_in_every_state(kubernetes: Kubernetes) -> None:
    claim = await claimed(kubernetes, "Waiting")
    kubernetes.clock.advance(50)
    seen = await bound(kubernetes.api, claim, 40)
    assert seen is not None
    assert (seen.active_deadline, seen.pre_running_deadline) == (90, 90)
    kubernetes.server.faults.requests.clear()
    await bound(kubernetes.api, claim, 20, seen)
    assert [one.verb for one in kubernetes.server.faults.requests] == ["patch"]


async def test_no_change_meets_another_object_of_the_name(kubernetes: Kubernetes) -> None:
    gone = await claimed(kubernetes)
    assert await release(kubernetes.api, gone) is None
    other = (await claim_cluster(kubernetes.api, KEY, plan())).claim
    assert (other.name, other.number) == (gone.name, 0)
    kubernetes.status(other.name, "Initializing")
    kubernetes.clock.advance(3000)
    before = kubernetes.server.store.find("RayJob", "default", other.name)
    assert await state(kubernetes.api, gone) is None
    assert await attach(kubernetes.api, gone, "job-0") is None
    assert await renew(kubernetes.api, gone, WINDOW) is None
    assert await bound(kubernetes.api, gone, 1) is None
    assert await release(kubernetes.api, gone) is None
    assert kubernetes.server.store.find("RayJob", "default", other.name) == before


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
async def test_a_lost_answer_is_asked_again(kubernetes: Kubernetes, verb: str, lost: str) -> None:
    claim = await claimed(kubernetes)
    kubernetes.server.faults.stage(verb=verb, kind="RayJob", lost=lost, times=2)
    attached = await attach(kubernetes.api, claim, "job-0")
    assert attached is not None
    assert attached.job_id == "job-0"
    assert await release(kubernetes.api, claim) is None
    assert await attach(kubernetes.api, claim, "job-0") is None


async def test_release_waits_for_rayjob_and_raycluster(kubernetes: Kubernetes) -> None:
    claim = await claimed(kubernetes)
    cluster = kubernetes.ray_cluster(claim)
    kubernetes.hold(claim.name)
    left = await release(kubernetes.api, claim, 0.01)
    assert left == f"RayJob {claim.name} is still being deleted; see whether KubeRay's operator runs"
    kubernetes.let_go(claim.name)
    assert await release(kubernetes.api, claim) is None
    assert [kubernetes.names(kind) for kind in ("RayJob", "RayCluster", "Secret")] == [[], [], []]
    assert cluster


async def test_release_tells_a_raycluster_that_stays(kubernetes: Kubernetes) -> None:
    """Without a reference that blocks its owner's deletion, it may go later than its RayJob."""
    claim = await claimed(kubernetes)
    cluster = kubernetes.ray_cluster(claim, blocks=False)
    held = {"metadata": {"finalizers": ["ray.io/gcs-ft-redis-cleanup-finalizer"]}}
    kubernetes.server.patch(kubernetes.server.admin, "RayCluster", "default", cluster, held)
    assert await release(kubernetes.api, claim, 0.01) == f"RayCluster {cluster} is still being deleted"


async def test_a_clear_deletes_what_earlier_runs_left(kubernetes: Kubernetes) -> None:
    other_task = SubmissionKey(TASK.model_copy(update={"map_index": 1}), "try1-other")
    first, present, newer = (SubmissionKey(TASK, f"try{number}-x") for number in (1, 2, 3))
    for key in (first, other_task, newer):
        await kubernetes.api.create(plan(key=key).manifest_of(0))
    claim = await claim_cluster(kubernetes.api, present, plan(key=present))
    deleted = await release_older(kubernetes.api, present, claim.state)
    assert deleted == [plan(key=first).manifest_of(0)["metadata"]["name"]]
    kept = [plan(key=key).manifest_of(0)["metadata"]["name"] for key in (other_task, present, newer)]
    assert kubernetes.names("RayJob") == sorted(kept)


@pytest.mark.parametrize(
    ("found", "is_older"),
    [
        ({"run_token": "try1-x", "created": 900.0}, True),
        ({"run_token": "try1-x", "created": 900.0, "deleting": True}, False),
        ({"run_token": "try3-x", "created": 100.0}, False),
        ({"run_token": "try2-x", "created": 100.0}, True),
        ({"run_token": "try2-x", "created": 500.0}, False),
        ({"run_token": "try2-own", "created": 100.0}, False),
        ({"run_token": "", "created": 100.0}, False),
    ],
)
def test_only_earlier_runs_count_as_older(found: dict[str, Any], is_older: bool) -> None:
    one = rayjob(**found)
    assert older([one], "try2-own", 500.0) == ([one] if is_older else [])
