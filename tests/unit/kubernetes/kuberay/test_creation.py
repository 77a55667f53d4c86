# SPDX-License-Identifier: Apache-2.0
"""Pods that Kubernetes refuses to create."""

from __future__ import annotations

from tests.support.approved import AssertSentences
from tests.support.kubernetes.judged import FORBIDDEN, judged, refused
from tests.support.kubernetes.seen import (
    CLUSTER,
    HEAD,
    NO_GPU,
    event,
    pod,
    rayjob,
    unschedulable,
)


def test_pod_that_is_refused(assert_sentences: AssertSentences) -> None:
    def told(message: str) -> str:
        found = judged(cluster=refused(message))
        prefix = "Failed to create head Pod ml/x, "
        by_event = judged(events=[event("FailedToCreateHeadPod", prefix + message, CLUSTER, "RayCluster")])
        said = found.message or found.lines[0]
        assert by_event.verdict == found.verdict
        assert (by_event.message or by_event.lines[0]).replace(prefix, "") == said
        return f"{found.verdict}: {said}"

    assert_sentences(told, head=HEAD, cluster=CLUSTER)


def test_worker_that_a_quota_forbids_is_told_while_the_job_runs() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    said = (
        "FailedCreateWorkerPod\n" + FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
    )
    found = judged(head, job=rayjob("Running"), cluster=refused(said, "FailedCreateWorkerPod"))
    assert found.verdict == "ready"
    assert found.lines[0] == (
        f"RayCluster {CLUSTER}: FailedCreateWorkerPod: {FORBIDDEN}exceeded quota: gpus, requested: "
        "requests.nvidia.com/gpu=1."
    )


def test_pod_that_can_not_be_deleted_is_no_reason_to_wait() -> None:
    found = judged(
        pod(phase="Running", node="n1"), cluster=refused("x is forbidden", "FailedDeleteWorkerPod")
    )
    assert [line.partition(": ")[2] for line in found.lines] == ["runs, and Ray starts on it."]


def test_pod_that_was_refused_and_is_there_now() -> None:
    events = [
        event(
            "FailedToCreateHeadPod", "Failed to create head Pod: is forbidden", CLUSTER, "RayCluster", at=1
        ),
        event("CreatedHeadPod", "Created head Pod", CLUSTER, "RayCluster", at=2),
    ]
    assert judged(unschedulable(NO_GPU), events=events).verdict == "waiting"
