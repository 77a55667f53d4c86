# SPDX-License-Identifier: Apache-2.0
"""From a RayCluster to the address of its dashboard: a service, the API server's proxy, or a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer

AUTO, SERVICE, PROXY = "auto", "service", "proxy"
"""Values of `dashboard_address` besides a template."""

RAY_TOKEN_HEADER = "X-Ray-Authorization"
"""Ray takes its token from this header where a proxy keeps `Authorization` to itself."""

_TOKEN_REMEDY = (
    "let authOptions of the RayCluster name the Secret that its pods started with, or restart them if that "
    "Secret has changed."
)
_PORT = 8265
_PORT_NAME = "dashboard"


@dataclass(frozen=True)
class Dashboard:
    """Where a RayCluster's dashboard listens.

    :param service: name of the head's service.
    """

    namespace: str
    cluster: str
    service: str
    port: int = _PORT


def dashboard_of(raycluster: Mapping[str, Any]) -> Dashboard:
    """The dashboard of a RayCluster as the API server returned it, by KubeRay's rules."""
    metadata, spec = raycluster["metadata"], raycluster.get("spec") or {}
    head = spec.get("headGroupSpec") or {}
    known = ((raycluster.get("status") or {}).get("head") or {}).get("serviceName")
    named = ((head.get("headService") or {}).get("metadata") or {}).get("name")
    return Dashboard(
        namespace=metadata.get("namespace") or "default",
        cluster=metadata["name"],
        service=known or named or f"{metadata['name']}-head-svc",
        port=_port(head),
    )


def _port(head: Mapping[str, Any]) -> int:
    """KubeRay makes the service's ports of the head's first container and of `headService`."""
    pod = (head.get("template") or {}).get("spec") or {}
    container = (pod.get("containers") or [{}])[0]
    service = (head.get("headService") or {}).get("spec") or {}
    for field, ports in ("containerPort", container.get("ports")), ("port", service.get("ports")):
        for port in ports or []:
            if port.get("name") == _PORT_NAME and port.get(field):
                return int(port[field])
    started = str((head.get("rayStartParams") or {}).get("dashboard-port") or "")
    return int(started) if started.isdecimal() else _PORT


def cluster_address(
    server: ApiServer, dashboard: Dashboard, token: str | None, dashboard_address: str = AUTO
) -> ClusterAddress:
    """How the Jobs API of a cluster is reached.

    :param token: Ray's.
    :param dashboard_address: :data:`AUTO`, :data:`SERVICE`, :data:`PROXY` or a template of a url, with
        ``{namespace}``, ``{cluster}`` and ``{service}``.
    :raises SpecError: it is not a url.
    """
    way = way_to(server, dashboard_address)
    if way == SERVICE:
        url = f"http://{dashboard.service}.{dashboard.namespace}.svc:{dashboard.port}"
        return ClusterAddress(url, token=token, token_remedy=_TOKEN_REMEDY)
    if way == PROXY:
        service = f"http:{dashboard.service}:{dashboard.port}"
        return ClusterAddress(
            f"{server.base}/api/v1/namespaces/{dashboard.namespace}/services/{service}/proxy",
            headers=_ray_header(token),
            verify=server.verify,
            token_remedy=_TOKEN_REMEDY,
            access=server.access,
        )
    # A gateway may have a use of its own for `Authorization`.
    url = way.format(namespace=dashboard.namespace, cluster=dashboard.cluster, service=dashboard.service)
    return ClusterAddress(url, token=token, headers=_ray_header(token), token_remedy=_TOKEN_REMEDY)


def way_to(server: ApiServer, dashboard_address: str) -> str:
    """`dashboard_address` with :data:`AUTO` decided."""
    if dashboard_address != AUTO:
        return dashboard_address
    return SERVICE if server.inside else PROXY


def token_of(address: ClusterAddress) -> str | None:
    """Ray's token in an address that :func:`cluster_address` has made, in whichever header it is sent."""
    return address.token or address.headers.get(RAY_TOKEN_HEADER, "").removeprefix("Bearer ") or None


def _ray_header(token: str | None) -> dict[str, str]:
    return {RAY_TOKEN_HEADER: f"Bearer {token}"} if token else {}
