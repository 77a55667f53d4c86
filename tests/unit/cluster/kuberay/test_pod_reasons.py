# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, and which reasons end the wait at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.kubernetes.judged import A_CLUSTER, judged
from tests.support.kubernetes.seen import (
    CLUSTER,
    HEAD,
    IMAGE,
    JOB,
    NO_GPU,
    event,
    pod,
    unschedulable,
)

USER = FailureClass.USER_ERROR


@pytest.mark.parametrize("there", [(), (pod(node="n1", waiting=("ContainerCreating", "")),)])
def test_head_that_no_look_meets_is_known_by_its_event(there: Sequence[Mapping[str, Any]]) -> None:
    """KubeRay replaces a head that has ended within seconds, and each look may come in between."""
    said = (
        f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
        "terminated status: &ContainerStateTerminated{ExitCode:127,Signal:0,Reason:Error,Message:,StartedAt:}"
    )
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}
    found = judged(
        *there,
        events=[event("DeletedHeadPod", said, CLUSTER, "RayCluster")],
        cluster={**A_CLUSTER, "spec": {"headGroupSpec": head}},
    )
    assert (found.verdict, found.failure_class) == ("fails", USER)
    assert found.message == (
        f"head pod {HEAD}: has ended: container ray-head found no Ray (exit code 127); use an image that has "
        f"Ray; it is {IMAGE}."
    )
    lost = judged(*there, events=[event("DeletedHeadPod", said.replace("127", "137"), CLUSTER, "RayCluster")])
    assert lost.verdict == "waiting"


PULL_EVENT = event(
    "Failed",
    f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = failed to pull and unpack image '
    f'"{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found',
)
DENIED = (
    'failed to resolve reference "x": pull access denied, repository does not exist or may require '
    "authorization: server message: insufficient_scope: authorization failed"
)

WAITS = [
    (
        "no_gpu_node",
        unschedulable(NO_GPU),
        [],
        "waits for a node: of 5 nodes none fits: 1 has the taint "
        "node-role.kubernetes.io/control-plane, which "
        "the pod does not tolerate, 4 have too little nvidia.com/gpu free.",
    ),
    (
        "no_label",
        unschedulable("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
        [],
        "3 have other labels than its node_selector asks for.",
    ),
    (
        "no_nodes",
        unschedulable("no nodes available to schedule pods"),
        [],
        "no nodes available to schedule pods.",
    ),
    (
        "cluster_autoscaler",
        unschedulable(NO_GPU),
        [
            event(
                "TriggeredScaleUp",
                "pod triggered scale-up: "
                "[{https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups/gke-h100 "
                "0->1 (max: 5)}]",
            )
        ],
        "; the cluster autoscaler adds nodes: gke-h100 0->1 (max: 5).",
    ),
    (
        "cluster_autoscaler_at_its_end",
        unschedulable(NO_GPU),
        [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 max node group size reached")],
        "; the cluster autoscaler adds no node for it: 2 max node group size reached.",
    ),
    (
        "no_capacity_in_the_cloud",
        unschedulable(NO_GPU),
        [
            event(
                "FailedScaleUp",
                "Node scale up in zones us-central1-c associated with this pod failed: GCE out of "
                "resources. Pod is "
                "at risk of not being scheduled.",
            )
        ],
        "; no node could be added: Node scale up in zones us-central1-c associated with this pod "
        "failed: GCE out of",
    ),
    (
        "karpenter",
        unschedulable(NO_GPU),
        [event("Nominated", "Pod should schedule on: nodeclaim/gpu-l4-x7k2q")],
        "; Karpenter adds a node: nodeclaim/gpu-l4-x7k2q.",
    ),
    (
        "karpenter_adds_none",
        unschedulable(NO_GPU),
        [
            event(
                "FailedScheduling",
                'Failed to schedule pod, incompatible with nodepool "default", no instance type',
            )
        ],
        '; Karpenter adds none: incompatible with nodepool "default", no instance type.',
    ),
    (
        "unbound_volume",
        unschedulable("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        [],
        "waits for a volume: a PersistentVolumeClaim of it is not bound.",
    ),
    (
        "gated",
        pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
        [],
        "waits behind a scheduling gate",
    ),
    (
        "image_is_pulled",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [event("Pulling", f'Pulling image "{IMAGE}"')],
        f"is on node n1, which pulls its image {IMAGE}.",
    ),
    (
        "first_pull_error",
        pod(node="n1", waiting=("ErrImagePull", DENIED)),
        [],
        f"can't pull its image {IMAGE}: ",
    ),
    (
        "rate_limit",
        pod(
            node="n1",
            waiting=("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: toomanyrequests'),
        ),
        [],
        "yet, and Kubernetes tries again: ",
    ),
    (
        "own_secret",
        pod(node="n1", waiting=("CreateContainerConfigError", f'secret "{JOB}-0a1b2c3d" not found')),
        [],
        f"waits for the Secret {JOB}-0a1b2c3d of its token.",
    ),
    (
        "volume_of_another_node",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [
            event(
                "FailedAttachVolume",
                'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x',
            )
        ],
        "can't start: Multi-Attach error for volume",
    ),
    (
        "probe",
        pod(phase="Running", node="n1"),
        [event("Unhealthy", "Readiness probe failed: HTTP probe failed")],
        "runs, but does not answer yet: Readiness probe failed: HTTP probe failed.",
    ),
    ("starting", pod(phase="Running", node="n1"), [], "runs, and Ray starts on it."),
    (
        "evicted",
        pod(phase="Failed", node="n1", reason="Evicted", message="The node was low on resource: disk"),
        [],
        "has ended: Evicted: its node ran low (The node was low on resource: disk)",
    ),
]


@pytest.mark.parametrize(("name", "of", "events", "told"), WAITS, ids=[one[0] for one in WAITS])
def test_what_may_come_is_told_once(
    name: str, of: dict[str, Any], events: list[dict[str, Any]], told: str
) -> None:
    found = judged(of, events=events)
    assert found.verdict == "waiting"
    (line,) = found.lines
    assert line.startswith(f"head pod {HEAD}: ")
    assert told in line
    again = judged(of, events=events, state=found.state)
    assert again.lines == ()
    assert again.state.latest.startswith(line.rstrip("."))


FAILS = [
    (
        "image_back_off",
        pod(node="n1", waiting=("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
        [PULL_EVENT],
        USER,
        "not found; correct image.",
    ),
    (
        "denied",
        pod(node="n1", waiting=("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {DENIED}')),
        [],
        USER,
        "authorization failed; correct image, or name a Secret",
    ),
    (
        "platform",
        pod(node="n1", waiting=("ImagePullBackOff", "ErrImagePull: no match for platform in manifest")),
        [],
        USER,
        "; use an image for the architecture of the nodes.",
    ),
    (
        "image_name",
        pod(node="n1", waiting=("InvalidImageName", 'Failed to apply default image tag "x:"')),
        [],
        USER,
        "is refused (InvalidImageName: Failed to apply default image tag",
    ),
    (
        "image_without_ray",
        pod(
            phase="Running",
            node="n1",
            waiting=("CrashLoopBackOff", "back-off 10s restarting failed container"),
            last={"exitCode": 127, "reason": "Error", "message": "/bin/bash: line 1: ray: command not found"},
        ),
        [],
        USER,
        f"ray: command not found); use an image that has Ray; it is {IMAGE}.",
    ),
    (
        "image_without_bash",
        pod(
            node="n1",
            waiting=("RunContainerError", 'exec: "/bin/bash": stat /bin/bash: no such file or directory'),
        ),
        [],
        USER,
        "no such file or directory; use an image that has Ray and bash.",
    ),
    (
        "image_without_bash_ended",
        pod(
            node="n1",
            phase="Failed",
            ended={"exitCode": 128, "reason": "StartError", "message": 'exec: "/bin/bash"'},
        ),
        [],
        USER,
        "; use an image that has Ray and bash.",
    ),
    (
        "image_without_ray_ended",
        pod(node="n1", phase="Failed", ended={"exitCode": 127, "reason": "Error"}),
        [],
        USER,
        "has ended: container ray-head found no Ray (exit code 127); use an image that has Ray",
    ),
    (
        "head_out_of_memory",
        pod(node="n1", phase="Failed", ended={"exitCode": 137, "reason": "OOMKilled"}),
        [],
        FailureClass.OUT_OF_MEMORY,
        "OOMKilled: container ray-head exceeded its memory limit of 8Gi; give it more",
    ),
    (
        "other_secret",
        pod(node="n1", waiting=("CreateContainerConfigError", 'secret "hf" not found')),
        [],
        USER,
        'can\'t start: secret "hf" not found; create what is missing',
    ),
    (
        "config_map_volume",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [event("FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "cfg" not found')],
        USER,
        'configmap "cfg" not found; correct volumes.',
    ),
    (
        "no_claim",
        unschedulable('persistentvolumeclaim "models" not found'),
        [],
        USER,
        "the PersistentVolumeClaim 'models' does not exist; create it, or correct volumes.",
    ),
]


@pytest.mark.parametrize(
    ("name", "of", "events", "failure_class", "told"), FAILS, ids=[one[0] for one in FAILS]
)
def test_what_cannot_come_fails_at_once(
    name: str, of: dict[str, Any], events: list[dict[str, Any]], failure_class: FailureClass, told: str
) -> None:
    found = judged(of, events=events)
    assert (found.verdict, found.failure_class) == ("fails", failure_class)
    assert told in found.message
    assert found.message.startswith(f"head pod {HEAD}: ")
    assert found.message.endswith(".")
