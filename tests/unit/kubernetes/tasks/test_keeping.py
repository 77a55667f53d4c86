# SPDX-License-Identifier: Apache-2.0
"""What a follower learns of Kubernetes when the cluster of its job falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.follow.outcome import FollowState, Verdict
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.clusters.heartbeat import RunHeartbeat
from airflow_provider_raybatch.kubernetes.kuberay.claim import claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import attach
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.world import World
from tests.unit.kubernetes.kuberay.conftest import CLUSTER, KEY, plan


def preempt(kubernetes: World, name: str) -> None:
    pods = [one["metadata"] for one in kubernetes.store.all("Pod")]
    (head,) = [pod["name"] for pod in pods if pod["labels"]["ray.io/node-type"] == "head"]
    kubernetes.disasters.preempt(head)
    kubernetes.scheduler.nodes.clear()  # so that the next head waits


def give_quota_again(kubernetes: World, name: str) -> None:
    """Take a RayJob's quota back and give it again, so that another cluster runs."""
    kubernetes.kueue.queues["q"] = {"cpu": 0.0}
    kubernetes.kueue.evict(name)
    kubernetes.settle()
    kubernetes.kueue.queues["q"] = {}


@pytest.mark.parametrize("happen", [preempt, give_quota_again])
def test_first_silent_poll_learns_that_the_head_is_gone(happen: Callable[[World, str], None]) -> None:
    kubernetes = World(kueue=True, clock=Clock(start=1_700_000_000))
    kubernetes.kueue.queues["q"] = {}
    api = MemoryKubernetes(kubernetes.server)

    async def seen() -> tuple[Verdict, Verdict]:
        made = await claim_cluster(api, KEY, plan(cluster=replace(CLUSTER, kueue_queue="q")))
        kubernetes.settle()
        await attach(api, made.claim, KEY.submission_id(0))
        place: Any = SimpleNamespace(api=lambda: api)
        (before_it,) = kubernetes.store.all("RayCluster")
        name = before_it["metadata"]["name"]
        keeper = RunHeartbeat(
            place, made.claim, KEY.submission_id(0), 3600.0, batch=True, ray_cluster=lambda: name
        )
        before = await keeper.looked(Verdict(FollowState()))
        happen(kubernetes, made.claim.name)
        kubernetes.settle()
        return before, await keeper.looked(Verdict(FollowState(unreachable_since=1.0)))

    before, after = asyncio.run(seen())
    kubernetes.runtime.close()
    assert before.outcome is None
    assert after.outcome is not None
    assert (after.outcome.state, after.outcome.failure_class) == ("failed", FailureClass.NODE_LOST)
