# SPDX-License-Identifier: Apache-2.0
"""How a RayCluster's dashboard is reached: a service, the API server's proxy or a template; and its token."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AuthenticationError,
    ClusterError,
    ClusterUnreachableError,
    NotARayDashboardError,
    RequestRejectedError,
    UserClusterError,
)
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient, Manifest
from airflow_provider_raybatch.kubernetes.api.errors import ROLE_FILE, ApiRefusal, ForbiddenError
from airflow_provider_raybatch.kubernetes.api.server import ApiServer

AUTO, SERVICE, PROXY = "auto", "service", "proxy"
"""Values of `dashboard_address` besides a template."""

RAY_TOKEN_HEADER = "X-Ray-Authorization"
"""Ray takes its token from this header where a proxy keeps `Authorization` to itself."""

_TOKEN_REMEDY = (
    "let authOptions of the RayCluster name the Secret that its pods started with, or restart them if that "
    "Secret has changed."
)
_PORT = 8265


def cluster_address(
    server: ApiServer, raycluster: Manifest, token: str | None, dashboard_address: str = AUTO
) -> ClusterAddress:
    """How the Jobs API of a cluster is reached.

    :param raycluster: as the API server returned it.
    :param token: Ray's.
    :param dashboard_address: :data:`AUTO`, :data:`SERVICE`, :data:`PROXY` or a template of a url, with
        ``{namespace}``, ``{cluster}`` and ``{service}``.
    :raises SpecError: it is not a url.
    """
    namespace, name = raycluster["metadata"].get("namespace") or "default", raycluster["metadata"]["name"]
    known = ((raycluster.get("status") or {}).get("head") or {}).get("serviceName")
    service = known or f"{name}-head-svc"
    inside = SERVICE if server.inside else PROXY
    way = inside if dashboard_address == AUTO else dashboard_address
    if way == SERVICE:
        url = f"http://{service}.{namespace}.svc:{_PORT}"
        return ClusterAddress(url, token=token, token_remedy=_TOKEN_REMEDY)
    if way == PROXY:
        return ClusterAddress(
            f"{server.base}/api/v1/namespaces/{namespace}/services/http:{service}:{_PORT}/proxy",
            headers=_ray_header(token),
            verify=server.verify,
            token_remedy=_TOKEN_REMEDY,
            access=replace(server.access, refusal=refused_by_proxy),
        )
    # A gateway may have a use of its own for `Authorization`.
    url = way.format(namespace=namespace, cluster=name, service=service)
    return ClusterAddress(url, token=token, headers=_ray_header(token), token_remedy=_TOKEN_REMEDY)


def refused_by_proxy(shown: str, code: int, body: bytes) -> ClusterError | None:
    """What a refusal of the API server means; ``None`` if the answer comes from Ray, behind its proxy.

    :param shown: the dashboard's url, without secrets.
    """
    refusal = ApiRefusal.read(code, body)
    if refusal.status.get("apiVersion") != "v1":
        return None
    told = f"The Kubernetes API server on the way to {shown} refuses ({code}: {refusal.message})"
    if code in {401, 403}:
        return AuthenticationError(
            f"{told}; log in again, allow get, create and update of services/proxy, as in {ROLE_FILE}, or "
            "set dashboard_address."
        )
    if code == 404:
        return NotARayDashboardError(f"{told}; the cluster is gone, or has another name.")
    if code in {408, 429} or code >= 500:
        return ClusterUnreachableError(f"{told}; the head may be starting or gone.")
    return RequestRejectedError(f"{told}; correct what it names, or set dashboard_address.")


def token_of(address: ClusterAddress) -> str | None:
    """Ray's token in an address that :func:`cluster_address` has made, in whichever header it is sent."""
    return address.token or address.headers.get(RAY_TOKEN_HEADER, "").removeprefix("Bearer ") or None


def _ray_header(token: str | None) -> dict[str, str]:
    return {RAY_TOKEN_HEADER: f"Bearer {token}"} if token else {}


TOKEN_KEY = "auth_token"
"""Where KubeRay looks for the token in a Secret."""


async def existing_address(
    api: KubernetesClient, server: ApiServer, name: str, dashboard_address: str = AUTO
) -> ClusterAddress:
    """The address of a running RayCluster, with its token, which the caller masks.

    :param dashboard_address: see :func:`~airflow_provider_raybatch.kubernetes.kuberay.reach.cluster_address`.
    :raises UserClusterError: there is no such cluster, it is being deleted, or its token can't be had.
    :raises ClusterUnreachableError: it is suspended, or its head is not ready.
    """
    found = await api.get("RayCluster", name)
    raycluster = _ready(found, name, api.namespace)
    token = await _token(api, raycluster)
    return cluster_address(server, raycluster, token, dashboard_address)


def _ready(found: Manifest | None, name: str, namespace: str) -> Manifest:
    where = f"RayCluster {name!r} in namespace {namespace!r}"
    if found is None:
        raise UserClusterError(
            f"name: there is no {where}; correct name or namespace, or leave name out to have a cluster "
            "created."
        )
    if found["metadata"].get("deletionTimestamp"):
        raise UserClusterError(f"name: {where} is being deleted; name another one.")
    status = found.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    head = conditions.get("HeadPodReady") or {}
    suspended = (found.get("spec") or {}).get("suspend") or status.get("state") == "suspended"
    if suspended or head.get("status") != "True":
        why = head.get("message") or status.get("reason") or "no reason is given"
        why = "it is suspended, by a queue or by `spec.suspend`" if suspended else why
        raise ClusterUnreachableError(
            f"name: the head of {where} is not ready ({why}); wait, or see `kubectl describe raycluster`."
        )
    return found


async def _token(api: KubernetesClient, raycluster: Manifest) -> str | None:
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
    secret = options.get("secretName") or name  # as KubeRay names the one that it makes
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
            f"key {TOKEN_KEY!r}; create it again."
        )
    return token


async def read_token(api: KubernetesClient, secret: str) -> str:
    """The token in a cluster's Secret; empty where there is none.

    :raises ForbiddenError: it may not be read.
    """
    found = await api.get("Secret", secret)
    held = ((found or {}).get("data") or {}).get(TOKEN_KEY)
    try:
        return base64.b64decode(held or "", validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
