# SPDX-License-Identifier: Apache-2.0
"""Kinds that the stand-in for a Kubernetes knows, and the paths at which they are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind.

    :param status: whether `status` is written by requests of its own, as for custom resources.
    :param fields: what field selectors may name besides name and namespace.
    """

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    status: bool = False
    fields: frozenset[str] = frozenset()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it: ``rayjobs.ray.io``, ``secrets``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """As messages of invalid objects name it: ``RayJob.ray.io``, ``Secret``."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


_INVOLVED = {f"involvedObject.{field}" for field in ("kind", "name", "namespace", "uid", "apiVersion")}

RESOURCES = {
    resource.kind: resource
    for resource in (
        Resource("RayJob", "rayjobs", "ray.io", status=True),
        Resource("RayCluster", "rayclusters", "ray.io", status=True),
        Resource("Secret", "secrets", fields=frozenset({"type"})),
        Resource("Pod", "pods", status=True, fields=frozenset({"status.phase", "spec.nodeName"})),
        Resource("Event", "events", fields=frozenset({*_INVOLVED, "reason", "type", "source"})),
        Resource("Service", "services", fields=frozenset({"spec.clusterIP", "spec.type"})),
        Resource("Namespace", "namespaces", namespaced=False, fields=frozenset({"status.phase"})),
        Resource("Workload", "workloads", "kueue.x-k8s.io", "v1beta1", status=True),
        Resource("LocalQueue", "localqueues", "kueue.x-k8s.io", "v1beta1", status=True),
    )
}
CUSTOM = frozenset({"RayJob", "RayCluster", "Workload", "LocalQueue"})
"""Kinds that are there only where their owner is installed."""


def resource_at(group: str, version: str, plural: str) -> Resource | None:
    """The kind that is served at a path."""
    found = (r for r in RESOURCES.values() if (r.group, r.version, r.plural) == (group, version, plural))
    return next(found, None)
