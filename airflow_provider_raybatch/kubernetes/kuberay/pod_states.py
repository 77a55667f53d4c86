# SPDX-License-Identifier: Apache-2.0
"""Pods and events as Kubernetes reports them, in its own words, which are cleaned and cut here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.follow.failure_reason import shortened
from airflow_provider_raybatch.contract.text import clean, cut_to
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import epoch

CLUSTER_LABEL = "ray.io/cluster"
"""Label of a RayCluster's pods."""
_VERSIONS = re.compile(r"Version mismatch: .*", re.DOTALL)
"""Ray's words, of several lines, for a worker with another Ray or Python than the head."""
_LONGEST = 500
"""Characters of a message that are kept."""
_COMING = frozenset({"", "ContainerCreating", "PodInitializing"})
"""States of a container that is about to start."""
_STOPPED = frozenset({0, 143})
"""Exit codes of a container that has ended as it was asked to."""


@dataclass(frozen=True)
class PodEvent:
    """What is used of an event, of whatever object.

    :param at: epoch seconds when it was last seen.
    """

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    at: float

    @property
    def text(self) -> str:
        """Reason and message."""
        return worded(self.reason, self.message)


@dataclass(frozen=True)
class Pod:
    """What is used of a pod of a RayCluster.

    :param group: of its workers; empty for the head.
    :param state: what it waits for, or how it ended, in Kubernetes' words.
    :param ended: whether it has ended, or is taken away.
    """

    name: str
    uid: str
    created: float
    head: bool
    group: str
    node: str
    deleting: bool
    ready: bool
    state: str
    ended: bool

    @property
    def shown(self) -> str:
        """Its name with its role, for people."""
        return f"{'head' if self.head else 'worker'} pod {self.name}"

    def is_meant_by(self, event: PodEvent) -> bool:
        """Whether an event is about this very pod: KubeRay gives a new head the name of the last one."""
        return event.name == self.name and event.uid in {"", self.uid} and event.at >= self.created


def worded(reason: str, message: str) -> str:
    """Kubernetes' word for a state, and its message if it has one."""
    return f"{reason}: {message.rstrip('.')}" if reason and message else reason or message


def text_of(text: object) -> str:
    """A message of Kubernetes as one line that a log may show."""
    return cut_to(" ".join(clean(str(text or "")).split()), _LONGEST)


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    """Read a pod as the API server returned it."""
    metadata, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    labels = metadata.get("labels") or {}
    head = labels.get("ray.io/node-type") == "head"
    end = next(_ends(spec, status, head), "")
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        head=head,
        group="" if head else labels.get("ray.io/group") or "",
        node=spec.get("nodeName") or "",
        deleting=metadata.get("deletionTimestamp") is not None,
        ready=bool(_condition(status, "Ready", "True")),
        state=end or _wait(spec, status),
        ended=bool(end),
    )


def events_of(manifests: Iterable[Mapping[str, Any]]) -> list[PodEvent]:
    """Events, the oldest first."""
    return sorted(map(_event, manifests), key=lambda event: event.at)


def _ends(spec: Mapping[str, Any], status: Mapping[str, Any], head: bool) -> Iterator[str]:
    """How a pod ended, or what takes it away: what tells most comes first."""
    phase, reason, message = (status.get(name) or "" for name in ("phase", "reason", "message"))
    disrupted = _condition(status, "DisruptionTarget", "True")
    if disrupted and reason != "Evicted":  # the condition says less of that
        yield worded(disrupted.get("reason") or "", text_of(disrupted.get("message")))
    if phase == "Unknown":
        yield worded(reason or phase, text_of(message) or "its node does not answer")
    if reason:
        yield worded(reason, text_of(message))
    containers = _containers(spec, status)
    over = phase in {"Failed", "Succeeded"}
    for one in containers if over else containers[:1]:  # a sidecar that ends leaves a pod that runs
        yield from _exits(one, "state")
    for one in containers[:1]:
        yield from _exits(one, "lastState")
    if over and (head or phase == "Failed"):
        yield f"{phase}: Ray ended without an error"


def _exits(container: Mapping[str, Any], which: str) -> Iterator[str]:
    ended = (container.get(which) or {}).get("terminated")
    if ended is None:
        return
    reason, code = ended.get("reason") or "Error", int(ended.get("exitCode") or 0)
    if code in _STOPPED and reason != "OOMKilled":
        return
    said = ended.get("message") or ""
    if found := _VERSIONS.search(said):
        said = found[0]
    elif len([line for line in said.splitlines() if line.strip()]) > 1:
        said = shortened(said)  # it may be a whole traceback
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    said = f"memory limit {limit}" if reason == "OOMKilled" and limit else text_of(said).rstrip(".")
    why = f" ({said})" if said else ""
    yield f"{reason}: container {container['name']} ended with exit code {code}{why}"


def _wait(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """What a pod waits for."""
    for one in _containers(spec, status):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if (reason := waiting.get("reason") or "") not in _COMING:
            why = worded(reason, text_of(waiting.get("message")))
            return f"can't start container {one['name']} of image {one['image']}: {why}"
    if not spec.get("nodeName"):
        unscheduled = _condition(status, "PodScheduled", "False") or {}
        why = text_of(unscheduled.get("message")) or unscheduled.get("reason") or "nothing is known yet"
        return f"waits for a node: {why.rstrip('.')}"
    running = status.get("phase") == "Running"
    return "runs, and Ray starts on it" if running else f"is on node {spec['nodeName']}"


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pod's containers in the order of its spec, Ray's first, then its init containers."""
    known = {}
    for part in ("containerStatuses", "initContainerStatuses"):
        known.update({one["name"]: one for one in status.get(part) or ()})
    return [
        {"image": "", **known.get(one["name"], {}), **one}
        for part in ("containers", "initContainers")
        for one in spec.get(part) or ()
    ]


def _condition(status: Mapping[str, Any], kind: str, holds: str) -> Mapping[str, Any] | None:
    found = (one for one in status.get("conditions") or () if one.get("type") == kind)
    return next((one for one in found if one.get("status") == holds), None)


def _event(manifest: Mapping[str, Any]) -> PodEvent:
    involved = manifest.get("involvedObject") or {}
    series, metadata = manifest.get("series") or {}, manifest.get("metadata") or {}
    # Newer reporters fill other fields than older ones.
    times = (
        series.get("lastObservedTime"),
        manifest.get("lastTimestamp"),
        manifest.get("eventTime"),
        manifest.get("firstTimestamp"),
        metadata.get("creationTimestamp"),
    )
    return PodEvent(
        kind=involved.get("kind") or "",
        name=involved.get("name") or "",
        uid=involved.get("uid") or "",
        reason=manifest.get("reason") or "",
        message=text_of(manifest.get("message")),
        at=epoch(next(filter(None, times), None)) or 0.0,
    )
