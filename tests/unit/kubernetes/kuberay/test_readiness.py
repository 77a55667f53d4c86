# SPDX-License-Identifier: Apache-2.0
"""What is said of a cluster that is not ready, and what ends the wait at once."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.kuberay.readiness import (
    ClusterSeen,
    WaitingState,
    judge_waiting,
)
from tests.support.approved import AssertSentences
from tests.support.kubernetes.judged import FORBIDDEN, judged, refused
from tests.support.kubernetes.seen import (
    CLUSTER,
    HEAD,
    JOB,
    NO_GPU,
    event,
    pod,
    rayjob,
    unschedulable,
)

USER = FailureClass.USER_ERROR


def being_deleted() -> dict[str, Any]:
    job = rayjob()
    job["metadata"]["deletionTimestamp"] = job["metadata"]["creationTimestamp"]
    return job


def test_what_ends_the_wait(assert_sentences: AssertSentences) -> None:
    def told(job: dict[str, Any] | None, **seen: Any) -> str:
        found = judged(job=job, **seen) if job else judge_waiting(ClusterSeen(None), WaitingState())
        assert found.verdict == "fails"
        assert found.failure_class is not None
        return f"[{found.failure_class.value}] {found.message}"

    assert_sentences(told, cluster=CLUSTER, job=JOB)


def test_rayjob_that_ended_still_says_why_workers_were_missing() -> None:
    """The driver knows of no quota: the end of its job shows this reason, too, and no line of its own."""
    cluster = refused(f"{FORBIDDEN}exceeded quota: gpus, requested: pods=1", "FailedCreateWorkerPod")
    job = rayjob("Failed", reason="AppFailed", message="x")
    for there in (cluster, None):
        found = judged(job=job, cluster=there)
        assert (found.verdict, found.lines) == ("fails", ())
        assert ("exceeded quota: gpus" in found.state.latest) is (there is cluster)


def test_cluster_that_kuberay_makes_again_is_waited_for() -> None:
    assert judged(job=rayjob("Initializing"), cluster=None).verdict == "waiting"


def test_kuberay_that_does_not_run() -> None:
    early = judged(job=rayjob(""), cluster=None, after=5)
    assert early.lines == (f"RayJob {JOB}: waits for KubeRay to create its cluster.",)
    late = judged(job=rayjob(""), cluster=None, after=40, state=early.state)
    assert late.lines == (f"RayJob {JOB}: KubeRay has not taken it up.",)
    assert late.state.latest.endswith("; look whether KubeRay's operator runs, and watches this namespace.")


def test_ready_cluster_says_so_and_tells_of_waiting_workers() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    workers = [unschedulable(NO_GPU, f"worker-{number}", group="gpu") for number in range(3)]
    found = judged(head, *workers, job=rayjob("Waiting"))
    assert found.verdict == "ready"
    assert found.lines[0] == f"head pod {HEAD}: is ready."
    assert found.lines[1].startswith("3 worker pods of group gpu: waits for a node: 0/5 nodes are available")
    assert len(found.lines) == 2


def test_dead_worker_does_not_end_a_ready_cluster() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    dead = pod("w", group="gpu", phase="Failed", node="n2", ended={"exitCode": 137, "reason": "OOMKilled"})
    assert judged(head, dead, job=rayjob("Running")).verdict == "ready"


def test_end_of_a_replaced_head_is_why_it_waits() -> None:
    """KubeRay makes the next head within a second, with the name of the last one."""
    status = "&ContainerStateTerminated{ExitCode:1,Signal:0,Reason:Error,Message:,StartedAt:}"
    said = f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
    told = event("DeletedHeadPod", f"{said}terminated status: {status}", CLUSTER, "RayCluster", at=1)
    found = judged(pod(node="n1", waiting=("ContainerCreating", "")), events=[told])
    assert found.verdict == "waiting"
    assert found.state.latest.startswith(f"head pod {HEAD}: has ended: ")
    assert "ExitCode:1,Signal:0,Reason:Error" in found.state.latest


def test_escape_sequences_of_a_cluster_are_removed() -> None:
    found = judged(unschedulable("no \x1b[31mnodes\x00\nat all ::group::x"))
    assert found.lines[0].endswith("waits for a node: no nodes\ufffd at all : :group::x.")


def test_number_of_lines_is_bounded() -> None:
    state = WaitingState()
    for number in range(300):
        state = judged(unschedulable(f"no nodes {number}"), state=state).state
    assert len(state.logged) == 200
