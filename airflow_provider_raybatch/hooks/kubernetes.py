# SPDX-License-Identifier: Apache-2.0
"""`KubernetesServerHook`: an Airflow connection of type ``kubernetes`` as a way to an API server.

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
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_raybatch.cluster.jobs_api.access import file_versions
from airflow_provider_raybatch.cluster.kuberay.kubeconfig import Kubeconfig, default_paths, kubeconfig_server
from airflow_provider_raybatch.cluster.kuberay.server import pod_server
from airflow_provider_raybatch.coercion import boolean
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import (
    RayBatchUnavailableException,
    RayConnectionError,
    for_airflow,
)
from airflow_provider_raybatch.hooks.lookup import server_lookup

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_raybatch.cluster.kuberay.server import ApiServer

DEFAULT_KUBERNETES_CONN_ID = "kubernetes_default"

_LOADING = threading.Lock()
_NAMES_SECRET = re.compile(r"(token|password|secret|key|key-data)$", re.IGNORECASE)


class KubernetesServerHook(BaseHook):
    """The Kubernetes API server of a connection, and the credentials for it.

    What the connection says wins: `in_cluster`, `kube_config`, `kube_config_path`, `cluster_context`. If it
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

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """As Airflow's; outside of tasks it also reads Airflow's database."""
        with server_lookup():
            return super().get_connection(conn_id)

    def server(self) -> ApiServer:
        """The API server. Blocks: it reads files, and may run a kubeconfig's exec plugin.

        :raises RayConnectionError: a field can't be used, or Airflow denies access to the connection.
        :raises RayBatchException: the connection was not found, or there are no credentials.
        """
        extras = _parsed(self._extras(), self.kubernetes_conn_id)
        for secret in _secrets(extras.get("kube_config")):
            mask_secret(secret)
        return self._server(extras)

    async def aserver(self) -> ApiServer:
        """As :meth:`server`, without blocking the event loop."""
        extras = await asyncio.to_thread(_parsed, await self._aextras(), self.kubernetes_conn_id)
        for secret in _secrets(extras.get("kube_config")):
            await amask_secret(secret)
        return await asyncio.to_thread(self._server, extras)

    def _extras(self) -> dict[str, Any]:
        if self.kubernetes_conn_id is None:
            return {}
        try:
            return self._extras_of(self.get_connection(self.kubernetes_conn_id))
        except (AirflowNotFoundException, PermissionError) as error:
            return self._extras_without(error)

    async def _aextras(self) -> dict[str, Any]:
        if self.kubernetes_conn_id is None:
            return {}
        try:
            return self._extras_of(await self._alook_up(self.kubernetes_conn_id))
        except (AirflowNotFoundException, PermissionError) as error:
            return self._extras_without(error)

    async def _alook_up(self, conn_id: str) -> Connection:
        try:
            return await self.aget_connection(conn_id)
        except AirflowNotFoundException:
            # Outside of tasks, and in `airflow dags test` (3.3), only the blocking call finds it.
            from asgiref.sync import sync_to_async

            return await sync_to_async(self.get_connection)(conn_id)

    def _extras_without(self, error: Exception) -> dict[str, Any]:
        if isinstance(error, PermissionError):
            raise RayConnectionError(
                f"Connection {self.kubernetes_conn_id!r}: Airflow denies this task access to it; allow it, "
                "or use another kubernetes_conn_id."
            )
        if self.kubernetes_conn_id == DEFAULT_KUBERNETES_CONN_ID:
            return {}
        raise RayBatchUnavailableException(
            f"Connection {self.kubernetes_conn_id!r} was not found, or Airflow could not read it now; "
            "correct kubernetes_conn_id, or create it with `airflow connections add "
            f"{self.kubernetes_conn_id} --conn-type kubernetes`."
        )

    def _extras_of(self, connection: Connection) -> dict[str, Any]:
        if connection.conn_type != "kubernetes":
            raise RayConnectionError(
                f"Connection {self.kubernetes_conn_id!r}: its type is {connection.conn_type!r}; name a "
                "connection of type 'kubernetes'."
            )
        prefix = "extra__kubernetes__"  # of connections made before Airflow 2.3
        extras = connection.extra_dejson
        return {
            name.removeprefix(prefix): value
            for name, value in extras.items()
            if value is not None and value != ""
        }

    def _server(self, extras: Mapping[str, Any]) -> ApiServer:
        field = f"Connection {self.kubernetes_conn_id!r}, field"
        try:
            in_cluster = _flag(extras, "in_cluster")
            verify = not _flag(extras, "disable_verify_ssl")
        except SpecError as error:
            raise RayConnectionError(f"{field} {error}") from None
        given = [name for name in ("kube_config", "kube_config_path") if name in extras]
        given += ["in_cluster"] if in_cluster else []
        if len(given) > 1:
            raise RayConnectionError(
                f"{field}s {' and '.join(given)}: only one of them can be used; remove the others."
            )
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
