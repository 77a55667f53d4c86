# SPDX-License-Identifier: Apache-2.0
"""Pods and events as Kubernetes reports them; text of the cluster is cleaned and cut here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.follow.failure_reason import shortened
from airflow_provider_raybatch.cluster.kuberay.rayjob import epoch
from airflow_provider_raybatch.contract.text import clean, cut_to

CLUSTER_LABEL = "ray.io/cluster"
"""Label of a RayCluster's pods."""
_VERSIONS = re.compile(r"Version mismatch: .*", re.DOTALL)
"""Ray's words, of several lines, for a worker with another Ray or Python than the head."""
_LONGEST = 500
"""Characters of a message that are kept."""


@dataclass(frozen=True)
class Ended:
    """How a container ended.

    :param reason: Kubernetes' word, such as ``OOMKilled`` or ``Error``.
    :param message: the end of its output where the pod asks for it, else mostly empty.
    """

    reason: str
    exit_code: int
    message: str


@dataclass(frozen=True)
class Container:
    """A container of a pod.

    :param waiting: Kubernetes' reason why it does not run, such as ``ImagePullBackOff``; empty if it runs.
    :param ended: how it ended, if it does not run any more.
    :param last_ended: how the process before the present one ended.
    :param memory: its memory limit as the pod has it; empty without one.
    """

    name: str
    image: str
    waiting: str
    message: str
    ended: Ended | None
    last_ended: Ended | None
    memory: str


@dataclass(frozen=True)
class Pod:
    """What is used of a pod of a RayCluster.

    :param group: of its workers; empty for the head.
    :param unscheduled: reason and message of the scheduler, while it finds no node.
    :param disrupted: reason and message of the condition `DisruptionTarget`: what takes the pod away.
    """

    name: str
    uid: str
    created: float
    head: bool
    group: str
    phase: str
    reason: str
    message: str
    node: str
    deleting: bool
    ready: bool
    unscheduled: tuple[str, str] | None
    disrupted: tuple[str, str] | None
    containers: tuple[Container, ...]

    @property
    def shown(self) -> str:
        """Its name with its role, for people."""
        return f"{'head' if self.head else 'worker'} pod {self.name}"

    def is_meant_by(self, event: PodEvent) -> bool:
        """Whether an event is about this very pod: KubeRay gives a new head the name of the last one."""
        return event.name == self.name and event.uid in {"", self.uid} and event.at >= self.created

    @property
    def ray(self) -> Container | None:
        """The container that runs Ray: the pod's first one."""
        return self.containers[0] if self.containers else None


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


def pod_of(manifest: Mapping[str, Any]) -> Pod:
    """Read a pod as the API server returned it."""
    metadata, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    labels = metadata.get("labels") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    role = labels.get("ray.io/node-type")
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        head=role == "head",
        group="" if role == "head" else labels.get("ray.io/group") or "",
        phase=status.get("phase") or "",
        reason=status.get("reason") or "",
        message=text_of(status.get("message")),
        node=spec.get("nodeName") or "",
        deleting=metadata.get("deletionTimestamp") is not None,
        ready=_holds(conditions, "Ready", "True") is not None,
        unscheduled=_holds(conditions, "PodScheduled", "False"),
        disrupted=_holds(conditions, "DisruptionTarget", "True"),
        containers=tuple(_containers(spec, status)),
    )


def events_of(manifests: Iterable[Mapping[str, Any]]) -> list[PodEvent]:
    """Events, the oldest first."""
    return sorted(map(_event, manifests), key=lambda event: event.at)


def text_of(text: object) -> str:
    """A message of Kubernetes as one line that a log may show."""
    return cut_to(_LONGEST, " ".join(clean(str(text or "")).split()))


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterable[Container]:
    """The pod's containers in the order of its spec, then its init containers."""
    known = {}
    for part in ("containerStatuses", "initContainerStatuses"):
        known.update({one["name"]: one for one in status.get(part) or ()})
    for part in ("containers", "initContainers"):
        for one in spec.get(part) or ():
            seen = known.get(one["name"], {})
            state, last = seen.get("state") or {}, seen.get("lastState") or {}
            waiting = state.get("waiting") or {}
            yield Container(
                name=one["name"],
                image=one.get("image") or seen.get("image") or "",
                waiting=waiting.get("reason") or "",
                message=text_of(waiting.get("message")),
                ended=_ended(state.get("terminated")),
                last_ended=_ended(last.get("terminated")),
                memory=str(((one.get("resources") or {}).get("limits") or {}).get("memory") or ""),
            )


def _ended(terminated: Mapping[str, Any] | None) -> Ended | None:
    if terminated is None:
        return None
    said = terminated.get("message") or ""
    if found := _VERSIONS.search(said):
        said = found[0]
    elif len([line for line in said.splitlines() if line.strip()]) > 1:
        said = shortened(said)  # it may be a whole traceback
    return Ended(terminated.get("reason") or "", int(terminated.get("exitCode") or 0), text_of(said))


def _holds(conditions: Mapping[Any, Mapping[str, Any]], name: str, status: str) -> tuple[str, str] | None:
    found = conditions.get(name) or {}
    if found.get("status") != status:
        return None
    return found.get("reason") or "", text_of(found.get("message"))


def _event(manifest: Mapping[str, Any]) -> PodEvent:
    involved = manifest.get("involvedObject") or {}
    return PodEvent(
        kind=involved.get("kind") or "",
        name=involved.get("name") or "",
        uid=involved.get("uid") or "",
        reason=manifest.get("reason") or "",
        message=text_of(manifest.get("message")),
        at=_seen(manifest),
    )


def _seen(manifest: Mapping[str, Any]) -> float:
    """When an event was last seen; newer reporters fill other fields than older ones."""
    series, metadata = manifest.get("series") or {}, manifest.get("metadata") or {}
    times = (
        series.get("lastObservedTime"),
        manifest.get("lastTimestamp"),
        manifest.get("eventTime"),
        manifest.get("firstTimestamp"),
        metadata.get("creationTimestamp"),
    )
    return epoch(next(filter(None, times), None)) or 0.0
