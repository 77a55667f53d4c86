# SPDX-License-Identifier: Apache-2.0
"""One job on one cluster of a run: a fake Ray behind the stand-in for a Kubernetes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError, StaleStateError
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.api.errors import ClusterOverError
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClaimResult
from airflow_provider_raybatch.kubernetes.kuberay.submission import OnCluster, submit_on_own_cluster
from tests.support.fake_ray import FakeRay

from .conftest import KEY, Kubernetes, plan

ID = KEY.submission_id
STATUSES = 2
"""Patches by KubeRay, before a cluster takes jobs."""


async def build(client: RayJobsClient, submission_id: str) -> JobRequest:
    return JobRequest("true", submission_id)


@pytest.fixture
def connect(kubernetes: Kubernetes, client: RayJobsClient) -> Callable[[ClaimResult], Any]:
    """Wait until KubeRay has the cluster ready, which is at once."""

    @asynccontextmanager
    async def connected(claimed: ClaimResult) -> AsyncIterator[RayJobsClient]:
        if not claimed.state.deployment_status:
            kubernetes.status(claimed.claim.name, "Initializing")
            kubernetes.status(claimed.claim.name, "Waiting")
        yield client

    return connected


@pytest.fixture
def submit(kubernetes: Kubernetes, connect: Callable[[ClaimResult], Any]) -> Callable[..., Any]:
    async def submitted(fingerprint: str = "f", build: Any = build, **more: Any) -> OnCluster:
        return await submit_on_own_cluster(kubernetes.api, KEY, plan(fingerprint, **more), connect, build)

    return submitted


def attached(kubernetes: Kubernetes) -> dict[str, str]:
    found = kubernetes.server.store.all("RayJob")
    return {one["metadata"]["name"]: one["spec"].get("jobId", "") for one in found}


async def test_job_and_cluster_have_one_number(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    made = await submit()
    assert (made.submitted.submission_id, made.claimed.claim.number) == (ID(0), 0)
    assert attached(kubernetes) == {made.claimed.claim.name: ID(0)}
    again = await submit()
    assert (again.claimed.adopted, again.submitted.adopted) == (True, True)
    assert list(ray.jobs) == [ID(0)]


async def test_a_job_that_was_not_attached_is_found(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    """Kubernetes did not answer then, or the worker has died between its POST and the patch."""
    kubernetes.server.faults.stage(verb="patch", kind="RayJob", lost="before", skip=STATUSES, times=4)
    await submit()
    assert list(attached(kubernetes).values()) == [""]
    again = await submit()
    assert (again.submitted.adopted, list(ray.jobs)) == (True, [ID(0)])
    assert list(attached(kubernetes).values()) == [ID(0)]


async def test_a_job_lost_before_it_was_attached_comes_again(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    kubernetes.server.faults.stage(verb="patch", kind="RayJob", lost="before", skip=STATUSES, times=4)
    await submit()
    ray.jobs.clear()
    again = await submit()
    assert (again.submitted.submission_id, again.submitted.adopted) == (ID(0), False)


@pytest.mark.parametrize("end", ["lost", "FAILED", "STOPPED"])
async def test_a_cluster_ends_with_its_job(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any], end: str
) -> None:
    first = await submit()
    if end == "lost":
        ray.jobs.clear()
    else:
        ray.jobs[ID(0)].end(end)
    made = await submit()
    assert (made.submitted.submission_id, made.submitted.adopted) == (ID(1), False)
    assert attached(kubernetes) == {made.claimed.claim.name: ID(1)}
    assert first.claimed.claim.name not in kubernetes.names("RayJob")


async def test_a_succeeded_job_is_returned_with_its_cluster(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    first = await submit()
    ray.jobs[ID(0)].end("SUCCEEDED")
    again = await submit()
    assert (again.claimed.claim, again.submitted.info.status) == (first.claimed.claim, "SUCCEEDED")


async def test_changed_arguments_make_the_next_cluster(ray: FakeRay, submit: Callable[..., Any]) -> None:
    await submit()
    with pytest.raises(StaleStateError):
        await submit("g", on_stale_state="fail")
    adopted = await submit("g", on_stale_state="adopt")
    assert adopted.submitted.submission_id == ID(0)
    replaced = await submit("g")
    assert replaced.submitted.submission_id == ID(1)


async def test_a_cluster_deleted_by_others_is_made_again(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    deleted: list[str] = []

    async def build_slowly(client: RayJobsClient, submission_id: str) -> JobRequest:
        if not deleted:
            deleted.extend(kubernetes.names("RayJob"))
            await kubernetes.api.delete("RayJob", deleted[0])
        return await build(client, submission_id)

    made = await submit(build=build_slowly)
    assert made.submitted.submission_id == ID(1)
    assert kubernetes.names("RayJob") == [made.claimed.claim.name] != deleted


async def test_a_waiting_rayjob_without_cluster_is_replaced(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    """KubeRay makes no other RayCluster there, and would wait until its deadline."""
    ray.stage("GET", f"/api/jobs/{ID(0)}", (502, "no backend"), times=3)
    made = await submit()
    assert made.submitted.submission_id == ID(1)
    assert kubernetes.names("RayJob") == [made.claimed.claim.name]


async def test_a_head_that_does_not_answer_is_left_alone(
    kubernetes: Kubernetes, ray: FakeRay, submit: Callable[..., Any]
) -> None:
    first = await submit()
    kubernetes.ray_cluster(first.claimed.claim)
    ray.stage("GET", f"/api/jobs/{ID(0)}", (502, "no backend"), times=3)
    with pytest.raises(ClusterUnreachableError):
        await submit()
    assert kubernetes.names("RayJob") == [first.claimed.claim.name]


async def test_clusters_that_keep_losing_jobs_are_given_up(
    kubernetes: Kubernetes, submit: Callable[..., Any]
) -> None:
    async def build_and_delete(client: RayJobsClient, submission_id: str) -> JobRequest:
        (name,) = kubernetes.names("RayJob")
        await kubernetes.api.delete("RayJob", name)
        return await build(client, submission_id)

    with pytest.raises(ClusterOverError, match="was deleted while its job was submitted") as raised:
        await submit(build=build_and_delete)
    assert raised.value.failure_class is FailureClass.CLUSTER_LOST
    assert kubernetes.names("RayJob") == []
