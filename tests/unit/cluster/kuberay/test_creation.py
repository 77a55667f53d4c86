# SPDX-License-Identifier: Apache-2.0
"""Pods that Kubernetes refuses to create."""

from __future__ import annotations

import pytest

from tests.support.kubernetes.judged import FORBIDDEN, judged, refused
from tests.support.kubernetes.seen import (
    CLUSTER,
    NO_GPU,
    event,
    pod,
    rayjob,
    unschedulable,
)

REFUSALS = [
    (
        "account",
        FORBIDDEN + 'error looking up service account ml/gpu: serviceaccount "gpu" not found',
        "fails",
        "the service account 'gpu' does not exist; create it, or correct service_account.",
    ),
    (
        "webhook",
        'admission webhook "validate.kyverno.svc-fail" denied the request: use an approved registry',
        "fails",
        "the admission webhook 'validate.kyverno.svc-fail' denies it: use an approved registry; "
        "correct ray_cluster",
    ),
    (
        "security",
        FORBIDDEN + 'violates PodSecurity "restricted:latest": runAsNonRoot != true',
        "fails",
        'violates PodSecurity "restricted:latest": runAsNonRoot != true; correct ray_cluster',
    ),
    (
        "quota",
        FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8",
        "waiting",
        "a ResourceQuota of the namespace has no room (exceeded quota: gpus, requested: "
        "requests.nvidia.com/gpu=1",
    ),
    (
        "webhook_down",
        'Internal error occurred: failed calling webhook "x": connection refused',
        "waiting",
        "and tries again",
    ),
]


@pytest.mark.parametrize(("name", "message", "verdict", "told"), REFUSALS, ids=[one[0] for one in REFUSALS])
def test_pod_that_is_refused(name: str, message: str, verdict: str, told: str) -> None:
    found = judged(cluster=refused(message))
    assert found.verdict == verdict
    assert told in (found.message or found.lines[0])
    seen = event("FailedToCreateHeadPod", f"Failed to create head Pod ml/x, {message}", CLUSTER, "RayCluster")
    found = judged(events=[seen])
    assert found.verdict == verdict
    assert told in (found.message or found.lines[0])


def test_worker_that_a_quota_forbids_is_told_while_the_job_runs() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    said = (
        "FailedCreateWorkerPod\n" + FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
    )
    found = judged(head, job=rayjob("Running"), cluster=refused(said, "FailedCreateWorkerPod"))
    assert found.verdict == "ready"
    assert found.lines[0] == (
        f"RayCluster {CLUSTER}: KubeRay can't create a worker pod: a ResourceQuota of the namespace "
        f"has no room "
        "(exceeded quota: gpus, requested: requests.nvidia.com/gpu=1)."
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
