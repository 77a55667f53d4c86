# SPDX-License-Identifier: Apache-2.0
"""What this package does on Kubernetes, and so the Role that it needs: these verbs, and no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi
from airflow_provider_raybatch.cluster.kuberay.errors import ForbiddenError

ROLE_FILE = "docs/kubernetes_role.yaml"

RAY_GROUP = "ray.io"


@dataclass(frozen=True)
class Operation:
    """One verb on one resource.

    :param group: API group; empty for the core one.
    :param why: what it is done for.
    :param only: the part of users who need it; empty for all.
    """

    verb: str
    resource: str
    group: str
    why: str
    only: str = ""


def _ray(verb: str, resource: str, why: str, only: str = "") -> Operation:
    return Operation(verb, resource, RAY_GROUP, why, only)


def _core(verb: str, resource: str, why: str, only: str = "") -> Operation:
    return Operation(verb, resource, "", why, only)


PROXY, BY_NAME, SHARED_CLUSTERS, KUEUE = "proxy", "name", "shared", "kueue"
"""Whose Airflow runs outside of the cluster; who uses a cluster by its name; whose tasks share clusters; who
has Kueue."""

OPERATIONS = (
    _ray("create", "rayjobs", "claims a cluster for a run"),
    _ray("get", "rayjobs", "follows it, and finds the one of an earlier attempt"),
    _ray("list", "rayjobs", "finds all clusters of a run, and what the sweeper may delete"),
    _ray("patch", "rayjobs", "names the job on it, and moves its deadline"),
    _ray("delete", "rayjobs", "gives the cluster back"),
    _ray("get", "rayclusters", "why a cluster is not ready, and where its head is"),
    _ray("list", "rayclusters", "whether a cluster that was given back is gone"),
    _core("create", "secrets", "gives the cluster its token"),
    _core("list", "pods", "why pods are pending, and how they ended"),
    _core("list", "events", "the scheduler's and the kubelet's reasons"),
    _core("get", "services/proxy", "reads from the dashboard through the API server", PROXY),
    _core("create", "services/proxy", "submits and stops jobs through the API server", PROXY),
    _core("update", "services/proxy", "uploads packages through the API server", PROXY),
    _core("get", "secrets", "reads the token of that cluster, this one Secret alone", BY_NAME),
    _core("get", "secrets", "reads the token of a cluster that another task has made", SHARED_CLUSTERS),
    Operation("list", "workloads", "kueue.x-k8s.io", "why Kueue does not admit a cluster", KUEUE),
)
"""Everything that is asked of an API server."""


async def check_rights(api: KubernetesApi, credentials: str, *only: str) -> None:
    """Check the rights that a cluster needs until it is deleted, before it is created.

    :param credentials: where the credentials come from.
    :param only: as for :func:`role_rules`.
    :raises ForbiddenError: the Role lacks a verb.
    """
    needed = [one for one in OPERATIONS if not one.only or one.only in only]
    allowed = await asyncio.gather(*(api.may(one.verb, one.resource, one.group) for one in needed))
    missing = [f"{one.verb} {one.resource}" for one, may in zip(needed, allowed, strict=True) if not may]
    if missing:
        raise ForbiddenError(
            f"{credentials[:1].upper()}{credentials[1:]} may not {', '.join(missing)} in namespace "
            f"{api.namespace!r}; bind it to the Role in {ROLE_FILE}, or correct the namespace."
        )


def role_rules(*only: str, secret: str = "") -> list[dict[str, Any]]:
    """Rules of the Role, as in a manifest.

    :param only: of :data:`PROXY`, :data:`BY_NAME`, :data:`SHARED_CLUSTERS` and :data:`KUEUE`: what the users
        of the Role need besides.
    :param secret: name of the one Secret that may be read, with :data:`BY_NAME`.
    """
    rules: dict[tuple[str, str, str], list[str]] = {}
    for operation in OPERATIONS:
        if operation.only and operation.only not in only:
            continue
        part = operation.only if operation.resource == "secrets" else ""
        rules.setdefault((operation.group, operation.resource, part), []).append(operation.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        | ({"resourceNames": [secret]} if part == BY_NAME else {})
        for (group, resource, part), verbs in rules.items()
    ]
