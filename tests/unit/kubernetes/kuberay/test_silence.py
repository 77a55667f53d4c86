# SPDX-License-Identifier: Apache-2.0
"""Why a cluster gives no answer: its RayJob's end, and the end of its head's pod."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.kuberay.claim import claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import attach, state
from airflow_provider_raybatch.kubernetes.kuberay.pods import WorkerCounts
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, rayjob_state
from airflow_provider_raybatch.kubernetes.kuberay.readiness import WaitingState, judge_waiting
from airflow_provider_raybatch.kubernetes.kuberay.waiting import cause_of_silence, observe, why_silent
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.seen import JOB, rayjob
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.world import World
from tests.unit.kubernetes.kuberay.conftest import CLUSTER, KEY, plan

OF_PODS = Diagnosis(FailureClass.OUT_OF_MEMORY, "The cluster's head pod x has ended: OOMKilled.")


@pytest.mark.parametrize(
    ("status", "reason", "of_pods", "failure_class"),
    [
        ("Running", "", None, None),
        ("Running", "", OF_PODS, FailureClass.OUT_OF_MEMORY),
        ("Complete", "", OF_PODS, None),
        ("Failed", "AppFailed", OF_PODS, FailureClass.OUT_OF_MEMORY),
        ("Failed", "AppFailed", None, FailureClass.INTERNAL),
        ("Failed", "JobStatusCheckTimeoutExceeded", None, FailureClass.CLUSTER_UNREACHABLE),
        ("Failed", "DeadlineExceeded", OF_PODS, FailureClass.TIMEOUT),
        ("Suspended", "", None, FailureClass.NODE_LOST),
    ],
)
def test_cause(
    status: str, reason: str, of_pods: Diagnosis | None, failure_class: FailureClass | None
) -> None:
    cause = cause_of_silence(rayjob_state(rayjob(status, reason=reason)), of_pods)
    assert (cause and cause.failure_class) is failure_class


def test_cause_of_a_deleted_rayjob() -> None:
    job = rayjob("Running")
    job["metadata"]["deletionTimestamp"] = job["metadata"]["creationTimestamp"]
    cause = cause_of_silence(rayjob_state(job), OF_PODS)
    assert cause is not None
    assert cause.failure_class is FailureClass.CANCELLED


def test_rayjob_that_is_gone() -> None:
    api = MemoryKubernetes(ApiServer(kuberay="1.7.0"))
    found = asyncio.run(why_silent(api, ClusterClaim("default", JOB, "uid", 0, "secret")))
    assert found.cause is not None
    assert found.cause.message == (
        f"The RayJob {JOB} was deleted, and its cluster with it; a retry makes another one."
    )


DISASTERS = [
    ("oom_kill", FailureClass.OUT_OF_MEMORY, "OOMKilled"),
    ("evict", FailureClass.OUT_OF_MEMORY, "The node was low on resource: memory"),
    ("preempt", FailureClass.NODE_LOST, "Preempt"),
    ("take_back", FailureClass.NODE_LOST, "imminent node shutdown"),
    ("lose", FailureClass.NODE_LOST, "PodGC: node no longer exists"),
    ("crash", FailureClass.INTERNAL, "ended with exit code 1"),
]


@pytest.mark.parametrize("later", [False, True], ids=["at_once", "after_kuberay_has_seen_it"])
@pytest.mark.parametrize(("disaster", "failure_class", "words"), DISASTERS, ids=[one[0] for one in DISASTERS])
def test_disaster_of_a_head(disaster: str, failure_class: FailureClass, words: str, later: bool) -> None:
    """Also after KubeRay has deleted the pod, whose events then tell."""
    kubernetes = World(clock=Clock(start=1_700_000_000))
    api = MemoryKubernetes(kubernetes.server)
    claim = asyncio.run(claim_cluster(api, KEY, plan())).claim
    kubernetes.settle()
    (head,) = kubernetes.store.all("Pod")
    of_node = disaster in {"take_back", "lose"}
    name = head["spec"]["nodeName"] if of_node else head["metadata"]["name"]
    kubernetes.server.clock.advance(60)
    getattr(kubernetes.disasters, disaster)(name)
    if not of_node:
        kubernetes.scheduler.nodes.clear()  # so that no new head gets ready
    if later:
        kubernetes.settle(4)
    found = asyncio.run(why_silent(api, claim))
    assert found.cause is not None
    assert found.cause.failure_class is failure_class
    if later and (of_node or disaster == "crash"):
        words = "ExitCode:137," if of_node else "ExitCode:1,"
    assert any(words in line for line in found.lines), found
    kubernetes.runtime.close()


def test_preempted_worker_is_told_once_its_pod_is_gone() -> None:
    kubernetes = World(clock=Clock(start=1_700_000_000))
    api = MemoryKubernetes(kubernetes.server)
    fixed = replace(CLUSTER, workers=1)
    claim = asyncio.run(claim_cluster(api, KEY, plan(cluster=fixed, counts=WorkerCounts(0, 1, 1)))).claim
    kubernetes.settle()
    names = [pod["metadata"]["name"] for pod in kubernetes.store.all("Pod")]
    (worker,) = [name for name in names if "-worker-" in name]
    kubernetes.disasters.preempt(worker)
    kubernetes.settle()
    assert worker not in [pod["metadata"]["name"] for pod in kubernetes.store.all("Pod")]
    found = asyncio.run(why_silent(api, claim))
    assert found.cause is None
    assert [line for line in found.lines if line.startswith(f"worker pod {worker}: Preempted: ")], found
    kubernetes.runtime.close()


def test_quota_taken_back_and_given_again_loses_the_job() -> None:
    kubernetes = World(kueue=True, clock=Clock(start=1_700_000_000))
    kubernetes.kueue.queues["q"] = {}
    api = MemoryKubernetes(kubernetes.server)
    queued = replace(CLUSTER, kueue_queue="q")
    claim = asyncio.run(claim_cluster(api, KEY, plan(cluster=queued))).claim
    kubernetes.settle()
    before = asyncio.run(state(api, claim))
    asyncio.run(attach(api, claim, KEY.submission_id(0)))
    assert asyncio.run(why_silent(api, claim, before.ray_cluster)).cause is None
    kubernetes.kueue.queues["q"] = {"cpu": 0.0}
    kubernetes.kueue.evict(claim.name)
    kubernetes.settle()
    kubernetes.kueue.queues["q"] = {}
    kubernetes.settle()
    after = asyncio.run(state(api, claim))
    assert (after.deployment_status, after.ray_cluster == before.ray_cluster) == ("Running", False)
    cause = asyncio.run(why_silent(api, claim, before.ray_cluster)).cause
    assert cause is not None
    assert cause.failure_class is FailureClass.NODE_LOST
    assert cause.message.startswith(f"Kueue has taken the quota of RayJob {claim.name} back")
    kubernetes.runtime.close()


def test_news_of_a_cluster_on_which_a_job_runs() -> None:
    kubernetes = World(clock=Clock(start=1_700_000_000))
    api = MemoryKubernetes(kubernetes.server)
    claim = asyncio.run(claim_cluster(api, KEY, plan())).claim
    kubernetes.settle()
    news = judge_waiting(asyncio.run(observe(api, claim)), WaitingState())
    assert news.verdict == "ready"
    assert len(news.lines) == 1
    assert news.lines[0].endswith(": is ready.")
    assert judge_waiting(asyncio.run(observe(api, claim)), news.state).lines == ()
    kubernetes.runtime.close()
