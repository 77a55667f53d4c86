# SPDX-License-Identifier: Apache-2.0
"""Pods, events and RayJobs as Kubernetes and KubeRay report them, in their own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.kubernetes.clock import timestamp

JOB = "raybatch-0123456789abcdef01234567-0"
CLUSTER = f"{JOB}-x7k2q"
HEAD = f"{CLUSTER}-head-9xw2l"
IMAGE = "registry.example/ray:2.56"
START = 1_700_000_000.0

NO_GPU = (
    "0/5 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
    "4 Insufficient nvidia.com/gpu. preemption: 0/5 nodes are available: 1 Preemption is not helpful for "
    "scheduling, 4 No preemption victims found for incoming pod."
)
"""The scheduler's words."""


def rayjob(
    status: str = "Initializing",
    *,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A RayJob; `more` is of its status."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": JOB,
            "uid": "job-uid",
            "labels": dict(labels or {}),
            "annotations": {},
            "creationTimestamp": timestamp(START),
        },
        "spec": {"rayClusterSpec": {"authOptions": {"secretName": f"{JOB}-0a1b2c3d"}}, **(spec or {})},
        "status": {"jobDeploymentStatus": status, "rayClusterName": CLUSTER, **more},
    }


def pod(
    name: str = HEAD,
    *,
    phase: str = "Pending",
    node: str = "",
    group: str = "",
    waiting: tuple[str, str] | None = None,
    ended: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
    conditions: Sequence[Mapping[str, str]] = (),
    ready: bool = False,
    memory: str = "8Gi",
    **status: Any,
) -> dict[str, Any]:
    """A pod of the cluster; a worker's if it has a `group`."""
    state: dict[str, Any] = {}
    if waiting:
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
    elif ended:
        state = {"terminated": dict(ended)}
    ray = "ray-worker" if group else "ray-head"
    statuses = [{"name": ray, "state": state, "lastState": {"terminated": dict(last)} if last else {}}]
    ready_now = [{"type": "Ready", "status": "True"}] if ready else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid of {name}",
            "labels": {
                "ray.io/cluster": CLUSTER,
                "ray.io/node-type": "worker" if group else "head",
                "ray.io/group": group or "headgroup",
            },
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": ray, "image": IMAGE, "resources": {"limits": {"memory": memory}}}],
        },
        "status": {
            "phase": phase,
            "conditions": [*conditions, *ready_now],
            "containerStatuses": statuses if node else [],
            **status,
        },
    }


def unschedulable(message: str, name: str = HEAD, **more: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, conditions=[condition], **more)


def event(reason: str, message: str, name: str = HEAD, kind: str = "Pod", at: float = 10.0) -> dict[str, Any]:
    """An event as the core API shows it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{name}.{reason.lower()}.{at:.0f}"[:253],
            "creationTimestamp": timestamp(START + at),
        },
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": None,
        "eventTime": timestamp(START + at),
    }
