# SPDX-License-Identifier: Apache-2.0
"""Why Kueue does not admit a RayJob: its Workload says so, else events. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.pod_states import PodEvent, text_of
from airflow_provider_raybatch.cluster.kuberay.reasons import Reason
from airflow_provider_raybatch.contract.failures import FailureClass

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the `uid` of the RayJob that it stands for."""

CREATED = "CreatedWorkload"
"""Reason of Kueue's event of a RayJob for which it has made a Workload."""
_TAKEN_UP = 60.0
"""Seconds after which Kueue should have made a Workload."""
_NO_QUEUE = re.compile(r"(?:LocalQueue|ClusterQueue) (\S*) ?doesn't exist")
_HOPELESS = frozenset({"ExceedsMaxQuota", "NoMatchingFlavor"})
"""Reasons of a Workload that the queue can't admit, however empty it is."""
_TOO_LARGE = re.compile(r"> maximum capacity \(")
_MAY_FIT = "insufficient unused quota"
"""Kueue's words for a flavor that is large enough, but in use."""


def admission(
    rayjob: Mapping[str, Any],
    workloads: Sequence[Mapping[str, Any]] | None,
    events: Sequence[PodEvent],
    age: float = 0.0,
) -> Reason:
    """Why a suspended RayJob waits.

    :param workloads: of the RayJob; ``None`` if they could not be read.
    :param events: of the RayJob and of its Workload, the oldest first.
    :param age: seconds since the RayJob was created.
    """
    queue = ((rayjob.get("metadata") or {}).get("labels") or {}).get(QUEUE_LABEL) or ""
    if not queue:
        return Reason("suspended", "is suspended (spec.suspend), and starts once that is undone")
    why, told = _of_workload(workloads) if workloads else ("", "")
    latest = [one for one in events if one.kind == "Workload" or one.reason in {"Stopped", "Suspended"}]
    if not told and latest:
        why, told = latest[-1].reason, latest[-1].message
    where = f"waits for Kueue to admit it from the queue {queue!r}"
    if not told and not workloads and age > _TAKEN_UP and not any(one.reason == CREATED for one in events):
        text = f"{where}, and Kueue has not taken it up"
        remedy = "look whether Kueue is installed, and its configuration lists the integration ray.io/rayjob"
        return Reason("no Kueue", text, remedy)
    if not told:
        remedy = f"look whether a LocalQueue {queue!r} exists in the namespace (kueue_queue), and has quota"
        return Reason("queue", where, remedy)
    if _NO_QUEUE.search(told):
        text = f"can't be admitted by Kueue: {told.rstrip('.')}"
        return Reason(
            told, text, "correct kueue_queue, or create the queue in the namespace", FailureClass.USER_ERROR
        )
    remedy = "ask for less, or have the queue's quota raised"
    if why in _HOPELESS or (_TOO_LARGE.search(told) and _MAY_FIT not in told):
        text = f"can never be admitted by Kueue from the queue {queue!r}: {told.rstrip('.')}"
        return Reason(told, text, remedy, FailureClass.USER_ERROR)
    return Reason(told, f"{where}: {told.rstrip('.')}", remedy)


def _of_workload(workloads: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Kueue's reason and message."""
    status = workloads[-1].get("status") or {}
    for check in status.get("admissionChecks") or ():
        if check.get("state") in {"Pending", "Retry", "Rejected"} and check.get("message"):
            return "", text_of(f"{check.get('name')}: {check['message']}")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return str(condition.get("reason") or ""), text_of(condition.get("message"))
    return "", ""
