# SPDX-License-Identifier: Apache-2.0
"""Why a pod does not run yet, and whether it ever can. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.last_words import container_end, pod_end
from airflow_provider_raybatch.cluster.kuberay.pod_states import Container, Pod, PodEvent
from airflow_provider_raybatch.cluster.kuberay.reasons import Reason
from airflow_provider_raybatch.cluster.kuberay.scheduling_words import unscheduled
from airflow_provider_raybatch.contract.failures import FailureClass

_USER = FailureClass.USER_ERROR
_BAD_IMAGE = frozenset({
    "InvalidImageName",
    "ErrImageNeverPull",
    "SignatureValidationFailed",
    "ImageInspectError",
})
_NOT_PULLED = frozenset({"ImagePullBackOff", "ErrImagePull", "RegistryUnavailable"})
_MAY_BE_PULLED = re.compile(
    r"toomanyrequests|[Tt]oo [Mm]any [Rr]equests|rate limit|[Tt]imed? ?out|deadline exceeded|"
    r"connection (?:refused|reset)|no such host|temporary failure|server misbehaving|handshake|"
    r"unexpected EOF|[Uu]navailable|no space left|\b50[0234]\b"
)
"""Of a registry that does not answer now; the kubelet tries again."""
_DENIED = re.compile(r"unauthorized|denied|forbidden|authorization|\b40[13]\b", re.IGNORECASE)
_PLATFORM = re.compile(r"no match for platform|exec format error|no matching manifest")
_NOT_STARTED = frozenset({"RunContainerError", "StartError", "ContainerCannotRun", "CreateContainerError"})
_LATER = re.compile(r"deadline exceeded|[Tt]imed? ?out|is reserved for|connection refused|[Uu]navailable")
_MISSING = re.compile(r'(?:secret|configmap) "([^"]+)" not found|in (?:Secret|ConfigMap) \S*?([^/\s]+)$')
_MOUNT = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"})
_CONTAINER_EVENTS = _MOUNT | {"Pulling", "Pulled", "Created", "Started", "Failed", "BackOff", "Unhealthy"}


def pod_reason(pod: Pod, events: Sequence[PodEvent], own_secret: str = "") -> Reason | None:
    """Why a pod is not ready; ``None`` if it is, or has been deleted.

    :param events: of this pod and others, the oldest first.
    :param own_secret: the Secret of the cluster's token, made after the RayJob, so a pod may wait for it.
    """
    if pod.ready or pod.deleting:
        return None
    if pod.phase != "Failed" and not pod.node and not any(one.waiting or one.ended for one in pod.containers):
        return unscheduled(pod, events)
    of_pod = [event for event in events if pod.is_meant_by(event) and event.reason in _CONTAINER_EVENTS]
    for container in pod.containers:
        reason = _container_reason(container, of_pod, own_secret)
        if reason is not None and (reason.hopeless or reason.key != "starting"):
            return reason
    if end := pod_end(pod, events):
        return ended_reason(end)
    return _starting(pod, of_pod, own_secret)


def ended_reason(end: Diagnosis) -> Reason:
    """Why a cluster waits whose pod has ended."""
    hopeless = end.failure_class if end.failure_class in {_USER, FailureClass.OUT_OF_MEMORY} else None
    return Reason(f"ended {end.message}", f"has ended: {end.message.rstrip('.')}", "", hopeless)


def _container_reason(container: Container, events: Sequence[PodEvent], own_secret: str) -> Reason | None:
    waiting, message = container.waiting, container.message.rstrip(".")
    image, said = f"image {container.image}", f": {message}" if message else ""
    if waiting in _BAD_IMAGE:
        return Reason(waiting, f"can't start: {image} is refused ({waiting}{said})", "correct image", _USER)
    if waiting in _NOT_PULLED:
        return _not_pulled(container, events)
    if waiting == "CreateContainerConfigError":
        return _not_configured(waiting, message, own_secret)
    if waiting in _NOT_STARTED or (container.ended and container.ended.reason in _NOT_STARTED):
        return _not_started(container, waiting or "StartError")
    if waiting == "CrashLoopBackOff":
        return _crashed(container)
    return Reason("starting", waiting) if waiting else None


def _not_pulled(container: Container, events: Sequence[PodEvent]) -> Reason:
    said = container.message
    told = [
        event.message for event in events if event.reason == "Failed" and container.image in event.message
    ]
    if told and ": " not in said.removeprefix("rpc error: "):
        said = told[-1]
    said, image = said.rstrip("."), container.image
    if _MAY_BE_PULLED.search(said):
        text = f"can't pull its image {image} yet, and Kubernetes tries again: {said}"
        return Reason(f"pull later {image}", text, "look at the registry")
    remedy = "correct image"
    if _PLATFORM.search(said):
        remedy = "use an image for the architecture of the nodes"
    elif _DENIED.search(said):
        remedy = "correct image, or name a Secret with the registry's login in image_pull_secrets"
    # The first error is followed by a back-off, which has the cause in the pod's events.
    hopeless = _USER if container.waiting == "ImagePullBackOff" else None
    return Reason(
        f"pull {image} {container.waiting}", f"can't pull its image {image}: {said}", remedy, hopeless
    )


def _not_configured(waiting: str, message: str, own_secret: str) -> Reason:
    if own_secret and own_secret in message:
        return Reason("own secret", f"waits for the Secret {own_secret} of its token")
    missing = _MISSING.search(message)
    named = repr(missing[1] or missing[2]) if missing else "what is missing"
    remedy = f"create {named}, or correct env and volumes"
    return Reason(f"{waiting} {message}", f"can't start: {message or waiting}", remedy, _USER)


def _not_started(container: Container, waiting: str) -> Reason:
    said = container.message or (container.ended.message if container.ended else "")
    if _LATER.search(said):
        return Reason(
            f"later {waiting}", f"does not start yet, and Kubernetes tries again: {said.rstrip('.')}"
        )
    remedy = "use an image that has Ray and bash"
    if _PLATFORM.search(said):
        remedy = "use an image for the architecture of the nodes"
    text = f"can't start container {container.name} of image {container.image}: {said.rstrip('.') or waiting}"
    return Reason(f"{waiting} {container.name}", text, remedy, _USER)


def _crashed(container: Container) -> Reason:
    end = container_end(container, container.last_ended)
    if end is None:
        text = f"crashes again and again ({container.message.rstrip('.')})"
        return Reason("crash", text, "look at its log", FailureClass.INTERNAL)
    text = f"crashes again and again: {end.message.rstrip('.')}"
    return Reason("crash", text, "", end.failure_class)


def _starting(pod: Pod, events: Sequence[PodEvent], own_secret: str) -> Reason:
    """A pod that has a node: the latest of its events says how far it is."""
    last = events[-1] if events else None
    if last is not None and last.reason in _MOUNT and pod.phase == "Pending":
        missing = _MISSING.search(last.message)
        if own_secret and own_secret in last.message:
            return Reason("own secret", f"waits for the Secret {own_secret} of its token")
        remedy = "correct volumes" if last.reason != "FailedCreatePodSandBox" else "look at its node"
        hopeless = _USER if missing and last.reason == "FailedMount" else None
        return Reason(
            f"{last.reason} {last.message}", f"can't start: {last.message.rstrip('.')}", remedy, hopeless
        )
    if last is not None and last.reason == "Unhealthy":
        return Reason(
            "unhealthy", f"runs, but does not answer yet: {last.message.rstrip('.')}", "look at its log"
        )
    if pod.phase == "Running":
        return Reason("starting Ray", "runs, and Ray starts on it")
    if last is not None and last.reason == "Pulling":
        image = pod.ray.image if pod.ray else ""
        return Reason("pulling", f"is on node {pod.node}, which pulls its image {image}")
    waits = [one for one in pod.containers if one.name == "wait-gcs-ready" and not one.ended]
    if waits:
        return Reason("waits for head", "waits for the head")
    return Reason("node", f"is on node {pod.node}, and its containers are created")
