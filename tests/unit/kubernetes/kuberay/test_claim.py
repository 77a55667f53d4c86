# SPDX-License-Identifier: Apache-2.0
"""Exactly one cluster for a run, on the stand-in for a Kubernetes."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, StaleStateError, UserClusterError
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.api.errors import (
    InvalidObjectError,
    KubernetesUnreachableError,
)
from airflow_provider_raybatch.kubernetes.kuberay.claim import claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import bound
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import FOR_EVER, RUN_TOKEN, RayJobState, rayjob_name

from .conftest import IDLE, KEY, PRE_RUNNING, WINDOW, Kubernetes, plan

NAMES = [rayjob_name(KEY, number) for number in range(5)]


async def test_second_claim_adopts_the_first(kubernetes: Kubernetes) -> None:
    first = await claim_cluster(kubernetes.api, KEY, plan())
    again = await claim_cluster(kubernetes.api, KEY, plan())
    assert (first.adopted, again.adopted) == (False, True)
    assert first.claim == again.claim
    assert kubernetes.names("RayJob") == NAMES[:1]
    assert kubernetes.names("Secret") == [first.claim.secret]
    (secret,) = kubernetes.server.store.all("Secret")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == first.claim.uid


async def test_two_at_once_come_to_one_cluster(kubernetes: Kubernetes) -> None:
    both = await asyncio.gather(*(claim_cluster(kubernetes.api, KEY, plan()) for _ in range(2)))
    assert both[0].claim == both[1].claim
    assert kubernetes.names("RayJob") == NAMES[:1]


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("kind", ["RayJob", "Secret"])
async def test_a_lost_answer_makes_no_second_one(kubernetes: Kubernetes, kind: str, lost: str) -> None:
    kubernetes.server.faults.stage(verb="create", kind=kind, lost=lost)
    claimed = await claim_cluster(kubernetes.api, KEY, plan())
    assert kubernetes.names("RayJob") == [claimed.claim.name]
    assert kubernetes.names("Secret") == [claimed.claim.secret]


async def test_no_answer_at_all_is_told_after_some_tries(kubernetes: Kubernetes) -> None:
    kubernetes.server.faults.stage(verb="create", kind="RayJob", lost="before", times=99)
    with pytest.raises(KubernetesUnreachableError):
        await claim_cluster(kubernetes.api, KEY, plan())
    assert len([one for one in kubernetes.server.faults.requests if one.verb == "create"]) == 4


async def test_an_adopter_creates_the_secret_that_is_missing(kubernetes: Kubernetes) -> None:
    """The worker has died right after it had created the RayJob."""
    await kubernetes.api.create(plan().manifest_of(0))
    claimed = await claim_cluster(kubernetes.api, KEY, plan())
    assert claimed.adopted
    assert kubernetes.names("Secret") == [claimed.claim.secret]


@pytest.mark.parametrize("status", ["Complete", "Failed", "ValidationFailed"])
async def test_an_ended_cluster_is_gone_before_the_next(kubernetes: Kubernetes, status: str) -> None:
    await claim_cluster(kubernetes.api, KEY, plan())
    kubernetes.status(NAMES[0], status, reason="DeadlineExceeded", jobId="job-0")
    ended: list[RayJobState] = []

    async def end_job(rayjob: RayJobState) -> None:
        assert kubernetes.names("RayJob") == NAMES[:1]
        ended.append(rayjob)

    claimed = await claim_cluster(kubernetes.api, KEY, plan(end_job=end_job))
    assert (claimed.claim.number, claimed.adopted) == (1, False)
    assert f"({status}, DeadlineExceeded)" in claimed.reason
    assert [one.name for one in ended] == NAMES[:1]
    assert kubernetes.names("RayJob") == NAMES[1:2]
    assert kubernetes.names("Secret") == [claimed.claim.secret]


async def test_the_result_of_an_ended_cluster_stands(kubernetes: Kubernetes) -> None:
    first = await claim_cluster(kubernetes.api, KEY, plan())
    kubernetes.status(NAMES[0], "Complete", jobStatus="SUCCEEDED", jobId="job-0")

    async def finished(rayjob: RayJobState) -> bool:
        return rayjob.job_id == "job-0"

    claimed = await claim_cluster(kubernetes.api, KEY, plan(finished=finished))
    assert (claimed.claim, claimed.adopted, claimed.state.terminal) == (first.claim, True, True)


async def test_changed_arguments_replace_the_cluster(kubernetes: Kubernetes) -> None:
    await claim_cluster(kubernetes.api, KEY, plan())
    with pytest.raises(StaleStateError, match=r"on_stale_state: .*with other arguments"):
        await claim_cluster(kubernetes.api, KEY, plan("g", on_stale_state="fail"))
    assert (await claim_cluster(kubernetes.api, KEY, plan("g", on_stale_state="adopt"))).claim.number == 0
    replaced = await claim_cluster(kubernetes.api, KEY, plan("g"))
    assert (replaced.claim.number, replaced.adopted) == (1, False)
    assert kubernetes.names("RayJob") == NAMES[1:2]


async def test_a_cluster_that_is_being_deleted_goes_first(kubernetes: Kubernetes) -> None:
    first = await claim_cluster(kubernetes.api, KEY, plan())
    kubernetes.hold(NAMES[0])
    await kubernetes.api.delete("RayJob", NAMES[0], uid=first.claim.uid)
    with pytest.raises(ClusterError, match="still being deleted") as raised:
        await claim_cluster(kubernetes.api, KEY, plan(), timeout=0.01)
    assert raised.value.failure_class is FailureClass.STALLED
    assert kubernetes.names("RayJob") == NAMES[:1]
    kubernetes.let_go(NAMES[0])
    assert (await claim_cluster(kubernetes.api, KEY, plan())).claim.number == 0


async def test_no_job_starts_before_lower_numbers_are_gone(kubernetes: Kubernetes) -> None:
    """A process that was frozen has created a lower number after its successor had released it."""
    for number in (0, 2):
        await kubernetes.api.create(plan().manifest_of(number))
    kubernetes.hold(NAMES[0])
    with pytest.raises(ClusterError, match="still being deleted"):
        await claim_cluster(kubernetes.api, KEY, plan(), timeout=0.01)
    kubernetes.let_go(NAMES[0])
    claimed = await claim_cluster(kubernetes.api, KEY, plan())
    assert (claimed.claim.number, claimed.adopted) == (2, True)
    assert kubernetes.names("RayJob") == NAMES[2:3]


async def test_who_creates_a_lower_number_gives_way(kubernetes: Kubernetes) -> None:
    """Between the list and the create, another process has gone on to a higher number."""
    made = plan()

    def late_manifest(number: int) -> dict[str, Any]:
        if number == 0:
            kubernetes.server.create(
                kubernetes.server.admin, "RayJob", "default", copy.deepcopy(made.manifest_of(2))
            )
        return made.manifest_of(number)

    claimed = await claim_cluster(kubernetes.api, KEY, plan(manifest_of=late_manifest))
    assert (claimed.claim.number, claimed.adopted) == (2, True)
    assert kubernetes.names("RayJob") == NAMES[2:3]


async def test_a_stranger_of_our_name_is_left_alone(kubernetes: Kubernetes) -> None:
    manifest = plan().manifest_of(0)
    manifest["metadata"]["labels"] = {}
    manifest["metadata"]["annotations"] = {}
    await kubernetes.api.create(manifest)
    with pytest.raises(UserClusterError, match=f"RayJob {NAMES[0]} in namespace default .*delete it"):
        await claim_cluster(kubernetes.api, KEY, plan())
    assert kubernetes.names("RayJob") == NAMES[:1]


async def test_a_cluster_that_lost_its_annotations_is_told(kubernetes: Kubernetes) -> None:
    await claim_cluster(kubernetes.api, KEY, plan())
    await kubernetes.api.patch("RayJob", NAMES[0], {"metadata": {"annotations": {RUN_TOKEN: None}}})
    with pytest.raises(UserClusterError, match=r"has this run's label, .*; delete it, and clear the task"):
        await claim_cluster(kubernetes.api, KEY, plan())
    assert kubernetes.names("RayJob") == NAMES[:1]


async def test_old_kuberay_is_refused_and_nothing_is_left() -> None:
    kubernetes = Kubernetes("1.5.2")
    with pytest.raises(UserClusterError, match=r"install KubeRay 1\.6 or newer"):
        await claim_cluster(kubernetes.api, KEY, plan())
    assert kubernetes.names("RayJob") == []


async def test_old_kuberay_that_drops_the_field_is_refused(kubernetes: Kubernetes) -> None:
    """A server that does not check fields keeps the object without the one it does not know."""

    def without_deadline(number: int) -> dict[str, Any]:
        manifest = plan().manifest_of(number)
        del manifest["spec"]["preRunningDeadlineSeconds"]
        return manifest

    with pytest.raises(UserClusterError, match="preRunningDeadlineSeconds"):
        await claim_cluster(kubernetes.api, KEY, plan(manifest_of=without_deadline))
    assert kubernetes.names("RayJob") == []


async def test_a_secret_that_is_refused_leaves_no_cluster(kubernetes: Kubernetes) -> None:
    def invalid(claim: Any) -> dict[str, Any]:
        return {**plan().secret_of(claim), "strange": 1}

    with pytest.raises(InvalidObjectError):
        await claim_cluster(kubernetes.api, KEY, plan(secret_of=invalid))
    assert kubernetes.names("RayJob") == []


async def test_an_adopted_cluster_gets_its_deadlines_back(kubernetes: Kubernetes) -> None:
    """A kill in doubt has shortened them."""
    first = await claim_cluster(kubernetes.api, KEY, plan())
    kubernetes.status(NAMES[0], "Initializing")
    kubernetes.clock.advance(100)
    shortened = await bound(kubernetes.api, first.claim, 60)
    assert shortened is not None
    assert (shortened.active_deadline, shortened.pre_running_deadline) == (160, 160)
    adopted = await claim_cluster(kubernetes.api, KEY, plan())
    assert (adopted.state.active_deadline, adopted.state.pre_running_deadline) == (100 + WINDOW, PRE_RUNNING)


@pytest.mark.parametrize(("spent", "deadline"), [(100, PRE_RUNNING), (1000, 1000 + IDLE)])
@pytest.mark.parametrize("window", [WINDOW, 35_100, FOR_EVER])
async def test_an_adopted_cluster_without_a_job_stays_idle_briefly(
    kubernetes: Kubernetes, window: float, spent: int, deadline: int
) -> None:
    """Its task may be killed for good before it submits, and `Waiting` has no other deadline."""
    await claim_cluster(kubernetes.api, KEY, plan(window=window))
    kubernetes.status(NAMES[0], "Initializing")
    kubernetes.status(NAMES[0], "Waiting")
    kubernetes.clock.advance(spent)
    for _ in range(3):
        adopted = await claim_cluster(kubernetes.api, KEY, plan(window=window))
    assert adopted.state.pre_running_deadline == deadline


async def test_a_cancelled_claim_returns_once_its_rayjob_exists(kubernetes: Kubernetes) -> None:
    """Whoever ends the task must find the RayJob there, to delete it."""
    arrived, may_answer = asyncio.Event(), asyncio.Event()
    create = kubernetes.api.create

    async def create_slowly(manifest: Any, **options: Any) -> dict[str, Any]:
        arrived.set()
        await may_answer.wait()
        return await create(manifest, **options)

    kubernetes.api.create = create_slowly  # type: ignore[method-assign]
    claiming = asyncio.create_task(claim_cluster(kubernetes.api, KEY, plan()))
    await arrived.wait()
    claiming.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not claiming.done()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert kubernetes.names("RayJob") == NAMES[:1]
