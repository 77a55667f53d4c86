# SPDX-License-Identifier: Apache-2.0
"""From a RayCluster to the address of its dashboard: a service, the API server's proxy, or a template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer
from airflow_provider_raybatch.contract.failures import SpecError

AUTO, SERVICE, PROXY = "auto", "service", "proxy"
"""Values of `dashboard_address` besides a template."""

PLACEHOLDERS = ("namespace", "cluster", "service")
"""What may stand in braces in a template."""

RAY_TOKEN_HEADER = "X-Ray-Authorization"
"""Ray takes its token from this header where a proxy keeps `Authorization` to itself."""

_WORDS = re.compile(r"\{([^{}]*)\}")
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
    :param dashboard_address: :data:`AUTO`, :data:`SERVICE`, :data:`PROXY` or a template of a url.
    :raises SpecError: the template is none.
    """
    way = dashboard_address
    if way == AUTO:
        way = SERVICE if server.inside else PROXY
    if way == SERVICE:
        url = f"http://{dashboard.service}.{dashboard.namespace}.svc:{dashboard.port}"
        return ClusterAddress(url, token=token)
    if way == PROXY:
        service = f"http:{dashboard.service}:{dashboard.port}"
        return ClusterAddress(
            f"{server.base}/api/v1/namespaces/{dashboard.namespace}/services/{service}/proxy",
            headers=_ray_header(token),
            verify=server.verify,
            access=server.access,
        )
    # A gateway may have a use of its own for `Authorization`.
    return ClusterAddress(filled(way, dashboard), token=token, headers=_ray_header(token))


def check_dashboard_address(dashboard_address: str) -> None:
    """Refuse what is neither a way nor a template.

    :raises SpecError: names value and remedy.
    """
    if dashboard_address in {AUTO, SERVICE, PROXY}:
        return
    unknown = any(word not in PLACEHOLDERS for word in _WORDS.findall(dashboard_address))
    if unknown or "://" not in dashboard_address:
        raise SpecError(
            f"dashboard_address: {dashboard_address!r} is neither {AUTO!r}, {SERVICE!r}, {PROXY!r} nor a url "
            f"with at most {', '.join('{' + name + '}' for name in PLACEHOLDERS)} in braces; write it as "
            "https://ray.example.com/{namespace}/{cluster}."
        )


def filled(template: str, dashboard: Dashboard) -> str:
    """The url of a template.

    :raises SpecError: see :func:`check_dashboard_address`.
    """
    check_dashboard_address(template)
    return _WORDS.sub(lambda found: str(getattr(dashboard, found[1])), template)


def _ray_header(token: str | None) -> dict[str, str]:
    return {RAY_TOKEN_HEADER: f"Bearer {token}"} if token else {}
