# SPDX-License-Identifier: Apache-2.0
"""An Airflow connection of type ``kubernetes`` as a way to an API server, and to the clusters there.

The connection has the fields of the cncf-kubernetes provider, whose form shows them. They are read here: that
provider's asynchronous hook never tries the pod's own service account, leaves `disable_verify_ssl` out,
reads files in the event loop, and makes a client for each call.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_raybatch.cluster.jobs_api.access import file_versions
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.coercion import boolean
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import (
    RayBatchUnavailableException,
    RayConnectionError,
    for_airflow,
)
from airflow_provider_raybatch.hooks.lookup import ConnectionHook
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, default_paths, kubeconfig_server
from airflow_provider_raybatch.kubernetes.api.server import ApiServer, pod_server
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.reach import cluster_address

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT_KUBERNETES_CONN_ID = "kubernetes_default"

_LOADING = threading.Lock()
_NAMES_SECRET = re.compile(r"(token|password|secret|key|key-data)$", re.IGNORECASE)


class KubernetesServerHook(ConnectionHook):
    """The Kubernetes API server of a connection, and the credentials for it.

    What the connection says wins: `kube_config`, `kube_config_path`, `in_cluster`, `cluster_context`. If it
    says nothing of these, the service account of the pod that this process runs in is used, else the
    kubeconfig that kubectl would read (`KUBECONFIG`, `~/.kube/config`). `namespace` and `disable_verify_ssl`
    apply in each case.

    :param kubernetes_conn_id: id of the connection; ``None`` for none. ``kubernetes_default`` need not exist.
    """

    conn_name_attr = "kubernetes_conn_id"
    default_conn_name = DEFAULT_KUBERNETES_CONN_ID

    def __init__(self, kubernetes_conn_id: str | None = DEFAULT_KUBERNETES_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kubernetes_conn_id = kubernetes_conn_id

    def server(self) -> ApiServer:
        """The API server. Blocks: it reads files, and may run a kubeconfig's exec plugin.

        :raises RayConnectionError: a field can't be used, or Airflow denies access to the connection.
        :raises RayBatchException: the connection was not found, or credentials are missing.
        """
        found: Connection | Exception | None = None
        if self.kubernetes_conn_id is not None:
            try:
                found = self.get_connection(self.kubernetes_conn_id)
            except (AirflowNotFoundException, PermissionError) as error:
                found = error
        extras = _parsed(self._extras(found), self.kubernetes_conn_id)
        for secret in _secrets(extras.get("kube_config")):
            mask_secret(secret)
        return self._server(extras)

    async def aserver(self) -> ApiServer:
        """As :meth:`server`, without blocking the event loop."""
        found: Connection | Exception | None = None
        if self.kubernetes_conn_id is not None:
            try:
                found = await self.afind_connection(self.kubernetes_conn_id)
            except (AirflowNotFoundException, PermissionError) as error:
                found = error
        extras = await asyncio.to_thread(_parsed, self._extras(found), self.kubernetes_conn_id)
        for secret in _secrets(extras.get("kube_config")):
            await amask_secret(secret)
        return await asyncio.to_thread(self._server, extras)

    def _extras(self, found: Connection | Exception | None) -> dict[str, Any]:
        """The connection's fields that are set, without one none."""
        if isinstance(found, PermissionError):
            raise RayConnectionError(
                f"Connection {self.kubernetes_conn_id!r}: Airflow denies this task access to it; allow it, "
                "or use another kubernetes_conn_id."
            )
        if found is None or isinstance(found, Exception):
            if self.kubernetes_conn_id in {None, DEFAULT_KUBERNETES_CONN_ID}:
                return {}
            raise RayBatchUnavailableException(
                f"Connection {self.kubernetes_conn_id!r} was not found, or Airflow could not read it now; "
                "correct kubernetes_conn_id, or create it with `airflow connections add "
                f"{self.kubernetes_conn_id} --conn-type kubernetes`."
            )
        if found.conn_type != "kubernetes":
            raise RayConnectionError(
                f"Connection {self.kubernetes_conn_id!r}: its type is {found.conn_type!r}; name a "
                "connection of type 'kubernetes'."
            )
        extras = found.extra_dejson
        return {name: value for name, value in extras.items() if value is not None and value != ""}

    def _server(self, extras: Mapping[str, Any]) -> ApiServer:
        field = f"Connection {self.kubernetes_conn_id!r}, field"
        try:
            in_cluster = _flag(extras, "in_cluster")
            verify = not _flag(extras, "disable_verify_ssl")
        except SpecError as error:
            raise RayConnectionError(f"{field} {error}") from None
        with for_airflow(), _LOADING:
            found = self._found(extras, in_cluster, verify)
        return replace(found, namespace=str(extras.get("namespace") or found.namespace))

    def _found(self, extras: Mapping[str, Any], in_cluster: bool | None, verify: bool) -> ApiServer:
        context = extras.get("cluster_context")
        shown = f"connection {self.kubernetes_conn_id!r}, field"
        if "kube_config" in extras:
            text = json.dumps(extras["kube_config"], sort_keys=True, default=str)
            return _from_content(text, context, f"{shown} kube_config", verify)
        if extras.get("kube_config_path"):
            path = str(extras["kube_config_path"])
            return _from_paths(path, context, f"{shown} kube_config_path", verify, _versions(path))
        if in_cluster or (in_cluster is None and context is None):
            pod = pod_server()
            if pod is not None:
                return pod if verify else replace(pod, verify=False)
        paths = None if in_cluster else default_paths()
        if paths is None:
            raise RayConnectionError(
                f"Connection {self.kubernetes_conn_id!r}: there are no credentials for Kubernetes here, "
                "neither a kubeconfig nor a pod's service account that field in_cluster allows; set field "
                "kube_config or kube_config_path, or mount the account's token."
            )
        return _from_paths(paths, context, f"the kubeconfig {paths}", verify, _versions(paths))


@lru_cache(maxsize=64)
def _from_content(text: str, context: str | None, shown: str, verify: bool) -> ApiServer:
    return kubeconfig_server(Kubeconfig(json.loads(text), context, shown, verify))


@lru_cache(maxsize=64)
def _from_paths(paths: str, context: str | None, shown: str, verify: bool, versions: object) -> ApiServer:
    return kubeconfig_server(Kubeconfig(paths, context, shown, verify))


def _flag(extras: Mapping[str, Any], name: str) -> bool | None:
    value = extras.get(name)
    return None if value is None else boolean(value, name=name)


def _versions(paths: str) -> object:
    return file_versions(Path(path).expanduser() for path in paths.split(":"))


def _parsed(extras: dict[str, Any], conn_id: str | None) -> dict[str, Any]:
    """With `kube_config` as a dictionary."""
    config = extras.get("kube_config")
    field = f"Connection {conn_id!r}, field kube_config"
    if isinstance(config, str):
        try:
            import yaml

            config = yaml.safe_load(config)
        except ImportError:
            raise RayConnectionError(
                f"{field}: a kubeconfig needs kubernetes_asyncio, which is not installed here; install "
                "airflow-provider-raybatch[kubernetes]."
            ) from None
        except yaml.YAMLError:
            config = None
    if "kube_config" not in extras:
        return extras
    if not isinstance(config, dict):
        raise RayConnectionError(f"{field}: it is not a kubeconfig; paste a whole one, as JSON or YAML.")
    return {**extras, "kube_config": config}


def _secrets(value: object) -> Iterator[str]:
    """What may be one: tokens, keys and passwords of users, also in the environment of exec plugins."""
    if isinstance(value, dict):
        # An environment variable has its name beside its value.
        pairs = {**value, str(value.get("name")): value["value"]} if "value" in value else value
        for name, inner in pairs.items():
            if isinstance(inner, str) and _NAMES_SECRET.search(str(name)):
                yield inner
            else:
                yield from _secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner)


_HURRIED = RetryPolicy(attempts=2, first_wait=0.1)
_HURRIED_SECONDS = 1.5


@dataclass(frozen=True)
class Kubernetes:
    """Where the clusters of a definition are.

    :param definition: may be one that only reaches clusters.
    """

    definition: KubeRayCluster
    server: ApiServer

    def api(self, *, hurried: bool = False) -> KubernetesClient:
        """A client, to be entered with ``async with``.

        :param hurried: whether it gives up after few seconds: Airflow's supervisor leaves a killed task five.
        """
        server, namespace = self.server, self.definition.namespace
        if not hurried:
            return KubernetesClient(server, namespace)
        return KubernetesClient(server, namespace, retries=_HURRIED, request_timeout=_HURRIED_SECONDS)

    async def address(self, api: KubernetesClient, ray_cluster: str, token: str) -> ClusterAddress | None:
        """How the Jobs API of a cluster is reached; ``None`` if the RayCluster does not exist.

        :raises ClusterError: Kubernetes gives no answer, or refuses.
        """
        found = await api.get("RayCluster", ray_cluster) if ray_cluster else None
        if found is None:
            return None
        return cluster_address(self.server, found, token, self.definition.dashboard_address)

    def page(self, address: ClusterAddress) -> str | None:
        """URL of the dashboard for people, made by the address template, or ``None``."""
        return address.url if "://" in self.definition.dashboard_address else None


def kubernetes_of(definition: KubeRayCluster) -> Kubernetes:
    """The Kubernetes of a definition.

    :raises RayBatchException: the connection can't be used or read, or credentials are missing.
    """
    return Kubernetes(definition, KubernetesServerHook(definition.kubernetes_conn_id).server())


async def akubernetes_of(definition: KubeRayCluster) -> Kubernetes:
    """As :func:`kubernetes_of`, without blocking the event loop."""
    return Kubernetes(definition, await KubernetesServerHook(definition.kubernetes_conn_id).aserver())
