# SPDX-License-Identifier: Apache-2.0
"""What the package does on Kubernetes, and so the Role that it needs, as rules of a manifest."""

from __future__ import annotations

from typing import Any, NamedTuple

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


PROXY, BY_NAME, LEASED_CLUSTERS, KUEUE = "proxy", "name", "leased", "kueue"
"""Whose Airflow runs outside of the cluster; who uses a cluster by its name; whose tasks lease clusters; who
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
    Operation("get", "secrets", only=LEASED_CLUSTERS),  # the token of a cluster that another task has made
    Operation("list", "workloads", "kueue.x-k8s.io", KUEUE),  # why Kueue does not admit a cluster
)
"""Everything that is asked of an API server."""


def role_rules(*only: str, secret: str = "") -> list[dict[str, Any]]:
    """Rules of the Role, as in a manifest.

    :param only: of :data:`PROXY`, :data:`BY_NAME`, :data:`LEASED_CLUSTERS` and :data:`KUEUE`: what the users
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
