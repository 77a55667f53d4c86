# SPDX-License-Identifier: Apache-2.0
"""How pods ended: OOMKilled, evicted, preempted and lost nodes are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.kubernetes.kuberay.pod_states import events_of, pod_of
from airflow_provider_raybatch.kubernetes.kuberay.verdicts import PodExits, pod_exits
from tests.support.approved import AssertSentences
from tests.support.kubernetes.seen import CLUSTER, HEAD, event, pod

LOST, MEMORY = FailureClass.NODE_LOST, FailureClass.OUT_OF_MEMORY


def told(*pods: Mapping[str, Any], events: Sequence[Mapping[str, Any]] = ()) -> PodExits:
    return pod_exits([pod_of(one) for one in pods], events_of(events))


def disrupted(reason: str, message: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def killed(reason: str = "Error", code: int = 137, message: str = "") -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "message": message}


LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 42Mi."
VERSIONS = (
    "File x\nRuntimeError: Version mismatch: The cluster was started with:\n"
    "    Ray: 2.60.0\n    Python: 3.12.1\n"
    "This process on node 10.0.0.1 was started with:\n    Ray: 2.56.0\n    Python: 3.11.7\n"
)
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


def test_end_of_a_head(assert_sentences: AssertSentences) -> None:
    def said(*events: Mapping[str, Any], **state: Any) -> str:
        found = told(pod(**{"phase": "Failed", "node": "n1", **state}), events=events)
        assert found.cause is not None
        assert found.lines == (f"head pod {HEAD}: {found.cause.message.partition('has ended: ')[2]}",)
        return f"[{found.cause.failure_class.value}] {found.lines[0]}"

    assert_sentences(said, head=HEAD)


def test_workers_are_information_only() -> None:
    worker = pod("w-1", group="gpu", phase="Failed", node="n1", ended=killed("OOMKilled"), memory="64Gi")
    found = told(worker, pod(phase="Running", node="n2", ready=True))
    assert found.cause is None
    assert found.lines == (
        "worker pod w-1: OOMKilled: container ray-worker ended with exit code 137 (memory limit 64Gi); give "
        "it more memory.",
    )


def test_head_that_kuberay_has_deleted() -> None:
    said = (
        f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
        f"terminated status: "
        "&ContainerStateTerminated{ExitCode:137,Signal:0,Reason:OOMKilled,Message:,"
        "StartedAt:2026-11-27 05:00:00 +0000 UTC,FinishedAt:2026-11-27 05:10:00 +0000 "
        "UTC,ContainerID:containerd://1,}"
    )
    found = told(events=[event("DeletedHeadPod", said, CLUSTER, "RayCluster")])
    assert found.cause is not None
    assert found.cause.failure_class is MEMORY
    assert found.lines == (
        f"head pod {HEAD}: {said.partition('; ')[2].partition(',StartedAt')[0]}; give it more memory.",
    )
    ready = pod(f"{CLUSTER}-head-other", phase="Running", node="n2", ready=True)
    assert told(ready, events=[event("DeletedHeadPod", said, CLUSTER, "RayCluster")]).cause is None


def test_head_that_is_gone_with_an_event(assert_sentences: AssertSentences) -> None:
    def said(reason: str, message: str) -> str:
        found = told(events=[event(reason, message)])
        assert found.cause is not None
        assert found.cause.failure_class is LOST
        assert found.lines[0].startswith(f"head pod {HEAD}: {reason}: ")
        return found.lines[0]

    assert_sentences(said)


def test_head_that_is_gone_without_a_word() -> None:
    found = told(pod("w-1", group="gpu", phase="Running", node="n1", ready=True))
    assert found.cause is not None
    assert found.cause.failure_class is LOST
    assert found.lines == ()


def test_healthy_and_stopped_pods_have_no_exit() -> None:
    stopped = pod("w-1", group="gpu", phase="Succeeded", node="n1", ended=killed("Completed", 0))
    asked = pod("w-2", group="gpu", phase="Failed", node="n1", ended=killed("Error", 143))
    asked["metadata"]["deletionTimestamp"] = "2026-11-27T05:00:00Z"
    asked["status"]["phase"] = "Running"
    assert told(pod(phase="Running", node="n1", ready=True), stopped, asked) == PodExits()


def test_end_of_a_sidecar_is_not_the_end_of_a_head() -> None:
    head = pod(phase="Running", node="n1")
    head["spec"]["containers"].append({"name": "autoscaler", "image": "x"})
    terminated = {"terminated": killed(code=1)}
    head["status"]["containerStatuses"].append({"name": "autoscaler", "state": terminated})
    assert told(head) == PodExits()


def test_lines_are_bounded_and_clean() -> None:
    message = "\x1b[31m" + "x" * 5000 + "\x00"
    pods = [
        pod(f"w-{number}", group="gpu", phase="Failed", node="n1", ended=killed(code=1, message=message))
        for number in range(100)
    ]
    found = told(pod(phase="Running", node="n1", ready=True), *pods)
    assert len(found.lines) == 20
    assert found.lines[-1] == "81 more pods ended."
    assert max(map(len, found.lines)) <= 700
    assert not any("\x1b" in line or "\x00" in line for line in found.lines)
