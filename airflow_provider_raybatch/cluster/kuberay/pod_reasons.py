# SPDX-License-Identifier: Apache-2.0
"""Why a pod does not run yet, in Kubernetes' own words, and whether it ever can. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.last_words import container_end, pod_end
from airflow_provider_raybatch.cluster.kuberay.pod_states import Container, Pod, PodEvent
from airflow_provider_raybatch.cluster.kuberay.reasons import Reason
from airflow_provider_raybatch.contract.failures import FailureClass

_USER = FailureClass.USER_ERROR
_LATER = (
    r"toomanyrequests|[Tt]oo [Mm]any [Rr]equests|rate limit|[Tt]imed? ?out|deadline exceeded|is reserved for|"
    r"connection (?:refused|reset)|no such host|temporary failure|server misbehaving|handshake|"
    r"unexpected EOF|[Uu]navailable|no space left|\b50[0234]\b"
)
"""Of a registry or a node that does not answer now; Kubernetes tries again."""
_PLATFORM = r"no match for platform|exec format error|no matching manifest"
_NOT_STARTED = "RunContainerError|StartError|ContainerCannotRun|CreateContainerError"
_OTHER_IMAGE = "use an image for the architecture of the nodes"


class _Verdict(NamedTuple):
    """What a state means.

    :param state: matches Kubernetes' reason of a container, a pod or an event, as a whole.
    :param words: are in its message.
    :param hopeless: the failure class if it can't come; ``None`` if it may.
    """

    state: str
    words: str
    remedy: str
    hopeless: FailureClass | None = None


_VERDICTS = (
    _Verdict("ImagePullBackOff|ErrImagePull|RegistryUnavailable", _LATER, "look at the registry"),
    # The first error may be of the moment: only the back-off after it ends the wait.
    _Verdict("ErrImagePull|RegistryUnavailable", "", "correct image"),
    _Verdict("ImagePullBackOff", _PLATFORM, _OTHER_IMAGE, _USER),
    _Verdict(
        "ImagePullBackOff",
        r"(?i)unauthorized|denied|forbidden|authorization|\b40[13]\b",
        "correct image, or name a Secret with the registry's login in imagePullSecrets of pod_override",
        _USER,
    ),
    _Verdict(
        "ImagePullBackOff|InvalidImageName|ErrImageNeverPull|SignatureValidationFailed|ImageInspectError",
        "",
        "correct image",
        _USER,
    ),
    _Verdict("CreateContainerConfigError", "", "create what is missing, or correct env and volumes", _USER),
    _Verdict(_NOT_STARTED, _LATER, "look at its node"),
    _Verdict(_NOT_STARTED, _PLATFORM, _OTHER_IMAGE, _USER),
    _Verdict(_NOT_STARTED, "", "use an image that has Ray and bash", _USER),
    _Verdict("FailedMount", "(?:secret|configmap) .*not found", "correct volumes", _USER),
    _Verdict("FailedMount|FailedAttachVolume", "", "correct volumes"),
    _Verdict("FailedCreatePodSandBox|Unhealthy", "", "look at its log and its node"),
    _Verdict("Unschedulable", "persistentvolumeclaim .*not found", "create it, or correct volumes", _USER),
    _Verdict("Unschedulable", "(?i)gpu|google.com/tpu", "add nodes with free GPUs, or ask for fewer"),
    _Verdict("Unschedulable", "PersistentVolumeClaim|volume", "correct volumes"),
    _Verdict("Unschedulable", "node affinity|selector", "correct accelerator_type or node_selector"),
    _Verdict("Unschedulable", "taint", "tolerate it in patch"),
    _Verdict("Unschedulable", "", "add nodes, or ask for less"),
)
"""The first that fits counts."""
_CONTAINER_EVENTS = frozenset({
    "FailedMount",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "Pulling",
    "Pulled",
    "Created",
    "Started",
    "Failed",
    "BackOff",
    "Unhealthy",
})
_NODE_EVENTS = frozenset({"TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated"})
"""Of the cluster autoscaler and Karpenter."""
_KARPENTER = "Failed to schedule pod, "
"""Begins Karpenter's refusals; their reason is `FailedScheduling`, as that of the scheduler's own."""
_PREEMPTION = re.compile(r"[.,]?\s*(?:no new claims to deallocate|[Pp]reemption:).*$")


def pod_reason(pod: Pod, events: Sequence[PodEvent], own_secret: str = "") -> Reason | None:
    """Why a pod is not ready; ``None`` if it is, or has been deleted.

    :param events: of this pod and others, the oldest first.
    :param own_secret: the Secret of the cluster's token, made after the RayJob, so a pod may wait for it.
    """
    if pod.ready or pod.deleting:
        return None
    of_pod = [event for event in events if pod.is_meant_by(event)]
    if pod.phase != "Failed" and not pod.node and not any(one.waiting or one.ended for one in pod.containers):
        return _without_node(pod, of_pod)
    told = [event for event in of_pod if event.reason in _CONTAINER_EVENTS]
    for container in pod.containers:
        reason = _of_container(container, told, own_secret)
        if reason is not None:
            return reason
    if end := pod_end(pod, events):
        return ended_reason(end)
    return _starting(pod, told, own_secret)


def ended_reason(end: Diagnosis) -> Reason:
    """Why a cluster waits whose pod has ended."""
    hopeless = end.failure_class if end.failure_class in {_USER, FailureClass.OUT_OF_MEMORY} else None
    return Reason(f"ended {end.message}", f"has ended: {end.message.rstrip('.')}", "", hopeless)


def _judged(state: str, message: str, of: str, thing: str, own_secret: str = "") -> Reason | None:
    """What a state and its message mean; ``None`` for one that is usual.

    :param thing: what else than the verdict makes it another reason, such as the image.
    """
    if own_secret and own_secret in message:
        return Reason("own secret", f"waits for the Secret {own_secret} of its token")
    for number, one in enumerate(_VERDICTS):
        if re.fullmatch(one.state, state) and re.search(one.words, message):
            text = f"{of}: {message}".rstrip(".") if message else of
            if one.words == _LATER:
                text += ", and Kubernetes tries again"
            return Reason(f"{number} {thing}", text, one.remedy, one.hopeless)
    return None


def _without_node(pod: Pod, events: Sequence[PodEvent]) -> Reason:
    state, message = pod.unscheduled or ("", "")
    if state == "SchedulingGated":
        return Reason("gated", "waits behind a scheduling gate, which a queue opens that admits the pod")
    if not message:
        return Reason(
            "scheduler", "waits for the scheduler", "look at the scheduler of the Kubernetes cluster"
        )
    said = _PREEMPTION.sub("", message).rstrip(".")
    found = _judged("Unschedulable", said, "waits for a node", said)
    assert found is not None
    told = [one for one in events if one.reason in _NODE_EVENTS]
    told = told or [one for one in events if one.message.startswith(_KARPENTER)]
    if not told or found.hopeless:
        return found
    added = f"; {told[-1].reason}: {told[-1].message.rstrip('.')}"
    return replace(found, key=found.key + added, text=found.text + added)


def _of_container(container: Container, events: Sequence[PodEvent], own_secret: str) -> Reason | None:
    state, message = container.waiting, container.message
    if state == "CrashLoopBackOff":
        end = container_end(container, container.last_ended)
        why = message if end is None else end.message
        failure_class = FailureClass.INTERNAL if end is None else end.failure_class
        remedy = "look at its log" if end is None else ""
        return Reason("crash", f"crashes again and again: {why.rstrip('.')}", remedy, failure_class)
    if not state and container.ended is not None:
        state, message = container.ended.reason, container.ended.message
    if state == "ImagePullBackOff" and ": " not in message.removeprefix("rpc error: "):
        # The first error is followed by a back-off, which has the cause in the pod's events.
        told = [one.message for one in events if one.reason == "Failed" and container.image in one.message]
        message = told[-1] if told else message
    of = f"can't start container {container.name} of image {container.image}: {state}"
    return _judged(state, message, of, container.image, own_secret)


def _starting(pod: Pod, events: Sequence[PodEvent], own_secret: str) -> Reason:
    """A pod that has a node: the latest of its events says how far it is."""
    last = events[-1] if events else None
    if last is not None and (pod.phase == "Pending" or last.reason == "Unhealthy"):
        found = _judged(
            last.reason, last.message, f"is on node {pod.node}: {last.reason}", last.reason, own_secret
        )
        if found is not None:
            return found
    if pod.phase == "Running":
        return Reason("starting Ray", "runs, and Ray starts on it")
    if last is not None and last.reason == "Pulling":
        image = pod.ray.image if pod.ray else ""
        return Reason("pulling", f"is on node {pod.node}, which pulls its image {image}")
    if any(one.name == "wait-gcs-ready" and not one.ended for one in pod.containers):
        return Reason("waits for head", "waits for the head")
    return Reason("node", f"is on node {pod.node}, and its containers are created")
