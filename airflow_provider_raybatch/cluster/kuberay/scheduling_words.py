# SPDX-License-Identifier: Apache-2.0
"""What the scheduler and node autoscalers say of a pod without a node, in plain words. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_raybatch.cluster.kuberay.pod_states import Pod, PodEvent
from airflow_provider_raybatch.cluster.kuberay.reasons import Reason
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import count_of

_NODES = re.compile(r"^(\d+)/(\d+) nodes are available: (.*)$")
_PREEMPTION = re.compile(r"[.,]?\s*(?:no new claims to deallocate|[Pp]reemption:).*$")
_PART = re.compile(r"^(\d+) (?:node\(s\) )?(.*)$")
_INTOLERANT = "which the pod does not tolerate"
_PLAIN = (
    (re.compile(r"^Insufficient (\S+)$"), r"too little \1 free"),
    (re.compile(r"^had untolerated taint \{([^:}]+): ?\}$"), rf"the taint \1, {_INTOLERANT}"),
    (re.compile(r"^had untolerated taint \{([^}]+)\}$"), rf"the taint \1, {_INTOLERANT}"),
    (re.compile(r"^had untolerated taint\(s\)$"), f"taints, {_INTOLERANT}"),
    (re.compile(r"^didn't match Pod's node \S+$"), "other labels than its node_selector asks for"),
    (re.compile(r"^were unschedulable$"), "been cordoned"),
    (re.compile(r"^Too many pods$"), "as many pods as they take"),
    (re.compile(r"^had volume node affinity conflict$"), "no access to its volume, of another zone"),
    (re.compile(r"^didn't have free ports for the requested pod ports$"), "its ports in use"),
)
_REMEDIES = (
    (
        re.compile(r"nvidia\.com|amd\.com/gpu|google\.com/tpu|gpu"),
        "add nodes with free GPUs, or ask for fewer",
    ),
    (re.compile(r"node affinity|selector"), "correct accelerator_type or node_selector"),
    (re.compile(r"taint"), "set tolerations"),
    (re.compile(r"Insufficient|Too many pods"), "add nodes, or ask for less"),
    (re.compile(r"volume"), "correct volumes"),
)
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims")
_AUTOSCALERS = frozenset({"TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated"})
_GROUP = re.compile(r"\{(?:\S*/)?([^/\s}]+) (\d+->\d+ \(max: \d+\))\}")
_KARPENTER = re.compile(r"^Failed to schedule pod, (.*)$", re.DOTALL)


def unscheduled(pod: Pod, events: Sequence[PodEvent]) -> Reason:
    """Why a pod has no node yet."""
    reason, message = pod.unscheduled or ("", "")
    if reason == "SchedulingGated":
        return Reason("gated", "waits behind a scheduling gate, which a queue opens that admits the pod")
    if found := _NO_CLAIM.search(message):
        return Reason(
            f"claim {found[1]}",
            f"can't start: the PersistentVolumeClaim {found[1]!r} does not exist",
            "create it, or correct volumes",
            FailureClass.USER_ERROR,
        )
    if _UNBOUND.search(message):
        return Reason(
            "unbound", "waits for a volume: a PersistentVolumeClaim of it is not bound", "correct volumes"
        )
    text, remedy = _from_scheduler(message)
    told = [event for event in events if pod.is_meant_by(event) and event.reason in _AUTOSCALERS]
    failed = [event for event in events if pod.is_meant_by(event) and event.reason == "FailedScheduling"]
    karpenter = _KARPENTER.match(failed[-1].message) if failed else None
    if told:
        text, remedy = _with_autoscaler(text, told[-1], remedy)
    elif karpenter:
        text += f"; Karpenter adds none: {karpenter[1].rstrip('.')}"
    return Reason(text, text, remedy)


def _from_scheduler(message: str) -> tuple[str, str]:
    if not message:
        return "waits for the scheduler", "look at the scheduler of the Kubernetes cluster"
    remedy = next((said for words, said in _REMEDIES if words.search(message)), "look at its events")
    found = _NODES.match(message)
    if found is None:
        return f"waits for a node: {message.rstrip('.')}", remedy
    fit, nodes, rest = found.groups()
    parts = [_plain(part) for part in _PREEMPTION.sub("", rest).rstrip(". ").split(", ")]
    of_nodes = count_of(int(nodes), "node")
    fitting = "none fits" if fit == "0" else f"{fit} fit"
    return f"waits for a node: of {of_nodes} {fitting}: {', '.join(parts)}", remedy


def _plain(part: str) -> str:
    """``5 Insufficient cpu`` as ``5 have too little cpu free``."""
    found = _PART.match(part)
    if found is None:
        return part
    count, said = found.groups()
    for words, plain in _PLAIN:
        if words.match(said):
            return f"{count} {'has' if count == '1' else 'have'} {words.sub(plain, said)}"
    return f"{count} {said}"


def _with_autoscaler(text: str, event: PodEvent, remedy: str) -> tuple[str, str]:
    said = event.message.rstrip(".")
    if event.reason == "TriggeredScaleUp":
        groups = ", ".join(f"{name} {count}" for name, count in _GROUP.findall(said)) or said
        return f"{text}; the cluster autoscaler adds nodes: {groups}", remedy
    if event.reason == "Nominated":
        return f"{text}; Karpenter adds a node: {said.rpartition(' ')[2]}", remedy
    if event.reason == "FailedScaleUp":
        return f"{text}; no node could be added: {said}", remedy
    why = said.partition(":")[2].strip() or "it gives no reason"
    return f"{text}; the cluster autoscaler adds no node for it: {why}", remedy
