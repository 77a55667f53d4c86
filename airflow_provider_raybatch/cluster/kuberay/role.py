# SPDX-License-Identifier: Apache-2.0
"""What this package does on Kubernetes, and so the Role that it needs: these verbs, and no more."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi
from airflow_provider_raybatch.cluster.kuberay.errors import ForbiddenError

ROLE_FILE = "docs/kubernetes_role.yaml"

RAY_GROUP = "ray.io"


class Operation(NamedTuple):
    """One verb on one resource.

    :param group: API group; empty for the core one.
    :param only: the part of users who need it; empty for all.
    """

    verb: str
    resource: str
    group: str = ""
    only: str = ""


PROXY, BY_NAME, SHARED_CLUSTERS, KUEUE = "proxy", "name", "shared", "kueue"
"""Whose Airflow runs outside of the cluster; who uses a cluster by its name; whose tasks share clusters; who
has Kueue."""

OPERATIONS = (
    Operation("create", "rayjobs", RAY_GROUP),  # claims a cluster for a run
    Operation("get", "rayjobs", RAY_GROUP),  # follows it, and finds the one of an earlier attempt
    Operation("list", "rayjobs", RAY_GROUP),  # finds all clusters of a run, and what the sweeper may delete
    Operation("patch", "rayjobs", RAY_GROUP),  # names the job on it, and moves its deadline
    Operation("delete", "rayjobs", RAY_GROUP),  # gives the cluster back
    Operation("get", "rayclusters", RAY_GROUP),  # why a cluster is not ready, and where its head is
    Operation("list", "rayclusters", RAY_GROUP),  # whether a cluster that was given back is gone
    Operation("create", "secrets"),  # gives the cluster its token
    Operation("list", "pods"),  # why pods are pending, and how they ended
    Operation("list", "events"),  # the scheduler's and the kubelet's reasons
    Operation("get", "services/proxy", only=PROXY),  # reads from the dashboard through the API server
    Operation("create", "services/proxy", only=PROXY),  # submits and stops jobs through the API server
    Operation("update", "services/proxy", only=PROXY),  # uploads packages through the API server
    Operation("get", "secrets", only=BY_NAME),  # reads the token of that cluster, this one Secret alone
    Operation("get", "secrets", only=SHARED_CLUSTERS),  # the token of a cluster that another task has made
    Operation("list", "workloads", "kueue.x-k8s.io", KUEUE),  # why Kueue does not admit a cluster
)
"""Everything that is asked of an API server."""


async def check_rights(api: KubernetesApi, credentials: str, *only: str) -> None:
    """Check the rights that a cluster needs until it is deleted, before it is created.

    :param credentials: where the credentials come from.
    :param only: of :data:`PROXY` and :data:`SHARED_CLUSTERS`, what is needed besides.
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
