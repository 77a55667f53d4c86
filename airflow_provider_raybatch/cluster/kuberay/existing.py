# SPDX-License-Identifier: Apache-2.0
"""A RayCluster that is there already, by its name: nothing is created or deleted."""

from __future__ import annotations

import base64
import binascii

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError, UserClusterError
from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi, Manifest
from airflow_provider_raybatch.cluster.kuberay.errors import ForbiddenError
from airflow_provider_raybatch.cluster.kuberay.reach import AUTO, cluster_address, dashboard_of
from airflow_provider_raybatch.cluster.kuberay.role import ROLE_FILE
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer

_TOKEN_KEY = "auth_token"
_LONGEST_SECRET = 50


async def existing_address(
    api: KubernetesApi, server: ApiServer, name: str, dashboard_address: str = AUTO
) -> ClusterAddress:
    """The address of a running RayCluster, with its token, which the caller masks.

    :param dashboard_address: see :func:`~airflow_provider_raybatch.cluster.kuberay.reach.cluster_address`.
    :raises UserClusterError: there is no such cluster, it is being deleted, or its token can't be had.
    :raises ClusterUnreachableError: it is suspended, or its head is not ready.
    """
    found = await api.get("RayCluster", name)
    raycluster = _ready(found, name, api.namespace)
    token = await _token(api, raycluster)
    return cluster_address(server, dashboard_of(raycluster), token, dashboard_address)


def _ready(found: Manifest | None, name: str, namespace: str) -> Manifest:
    where = f"RayCluster {name!r} in namespace {namespace!r}"
    if found is None:
        raise UserClusterError(
            f"name: there is no {where}; correct name or namespace, or leave name out to have a cluster "
            "created."
        )
    spec, status = found.get("spec") or {}, found.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    if found["metadata"].get("deletionTimestamp"):
        raise UserClusterError(f"name: {where} is being deleted; name another one.")
    if spec.get("suspend") or status.get("state") == "suspended":
        raise ClusterUnreachableError(
            f"name: {where} is suspended, by a queue or by hand; resume it (`spec.suspend: false`), or wait "
            "until its queue admits it."
        )
    head = conditions.get("HeadPodReady") or {}
    # Without the condition, KubeRay is older than 1.3.
    if head.get("status") != "True" if head else status.get("state") != "ready":
        reasons = head.get("message"), status.get("reason"), head.get("reason"), "no reason is given"
        raise ClusterUnreachableError(
            f"name: the head of {where} is not ready ({next(filter(None, reasons))}); wait, or see "
            "`kubectl describe raycluster`."
        )
    return found


async def _token(api: KubernetesApi, raycluster: Manifest) -> str | None:
    """The cluster's token; ``None`` if it takes none."""
    name = raycluster["metadata"]["name"]
    options = (raycluster.get("spec") or {}).get("authOptions") or {}
    if options.get("mode") != "token":
        return None
    if options.get("enableK8sTokenAuth"):
        # Its owners would get this process's own credentials.
        raise UserClusterError(
            f"name: RayCluster {name!r} asks for tokens of Kubernetes (authOptions.enableK8sTokenAuth), "
            "which are not sent to a cluster; name one with a token in a Secret, or set a connection's token "
            "and use ray_conn_id."
        )
    secret = options.get("secretName") or default_secret(name)
    try:
        token = await read_token(api, secret)
    except ForbiddenError as error:
        raise ForbiddenError(
            f"name: the token of RayCluster {name!r} is in the Secret {secret!r}, which may not be read; "
            f"allow `get` of this one Secret, as in {ROLE_FILE} ({error})"
        ) from None
    if not token:
        raise UserClusterError(
            f"name: RayCluster {name!r} has its token in the Secret {secret!r}, which is missing or has no "
            f"key {_TOKEN_KEY!r}; create it again."
        )
    return token


async def read_token(api: KubernetesApi, secret: str) -> str:
    """The token in a cluster's Secret; empty where there is none.

    :raises ForbiddenError: it may not be read.
    """
    found = await api.get("Secret", secret)
    held = ((found or {}).get("data") or {}).get(_TOKEN_KEY)
    try:
        return base64.b64decode(held or "", validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def default_secret(cluster: str) -> str:
    """Name of the Secret that KubeRay makes for a cluster without `secretName` (its ``CheckName``)."""
    name = cluster[-_LONGEST_SECRET:]
    return name if name[0].isalpha() else f"r{name[1:]}"
