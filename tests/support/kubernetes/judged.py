# SPDX-License-Identifier: Apache-2.0
"""One look at a cluster that is not ready, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.kubernetes.kuberay.pod_states import events_of, pod_of
from airflow_provider_raybatch.kubernetes.kuberay.readiness import (
    ClusterSeen,
    Readiness,
    WaitingState,
    judge_waiting,
)
from tests.support.kubernetes.seen import CLUSTER, START, rayjob

A_CLUSTER = {"metadata": {"name": CLUSTER}, "status": {"state": ""}}


def judged(
    *pods: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]] = (),
    job: Mapping[str, Any] | None = None,
    state: WaitingState | None = None,
    cluster: Mapping[str, Any] | None = A_CLUSTER,
    workloads: Sequence[Mapping[str, Any]] | None = None,
    after: float = 20.0,
) -> Readiness:
    seen = ClusterSeen(
        dict(job or rayjob()),
        dict(cluster) if cluster else None,
        [pod_of(one) for one in pods],
        events_of(events),
        None if workloads is None else [dict(one) for one in workloads],
        START + after,
    )
    return judge_waiting(seen, state or WaitingState())


def refused(message: str, reason: str = "FailedCreateHeadPod") -> dict[str, Any]:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": message}
    return {"metadata": {"name": CLUSTER}, "status": {"conditions": [condition]}}


FORBIDDEN = 'pods "x" is forbidden: '
