# SPDX-License-Identifier: Apache-2.0
"""Credentials from a kubeconfig, read by ``kubernetes_asyncio``: tokens, certificates, OIDC, exec plugins."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.access import Access, ClientCertificate
from airflow_provider_raybatch.cluster.jobs_api.blocking import call_within
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, UserClusterError
from airflow_provider_raybatch.contract.text import cut_to, plain_reason
from airflow_provider_raybatch.kubernetes.api.errors import KubernetesLoginError
from airflow_provider_raybatch.kubernetes.api.server import ApiServer

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

_LOAD_SECONDS = 60.0
"""Bound of one loading, an exec plugin included."""
_LOAD_AGAIN = 60.0
"""Seconds after which tokens that are files are read again."""
_BEFORE_EXPIRY = 300.0
"""Seconds before the end of an exec plugin's token that another one is asked for."""
_FAILED_WAIT = 15.0
"""Seconds after which a plugin that failed runs again."""
_LONGEST_CAUSE = 300


@dataclass(frozen=True)
class Kubeconfig:
    """Where a kubeconfig is.

    :param source: its content, or paths as in `KUBECONFIG`, parted by `:`.
    :param context: a context's name; ``None`` for the current one.
    :param shown: what messages call it, such as ``connection 'k8s', field kube_config``.
    :param verify_tls: whether the server's certificate is verified, if the kubeconfig does not decide
        against it.
    """

    source: Mapping[str, Any] | str = field(repr=False)
    context: str | None = None
    shown: str = "the kubeconfig"
    verify_tls: bool = True

    @property
    def identity(self) -> str:
        """Equal for those that are the same; may hold secrets."""
        source = (
            self.source
            if isinstance(self.source, str)
            else json.dumps(self.source, sort_keys=True, default=str)
        )
        return json.dumps(["kubeconfig", source, self.context, self.verify_tls])


def kubeconfig_server(kubeconfig: Kubeconfig) -> ApiServer:
    """The API server of a kubeconfig's context. Reads files and may run an exec plugin, so it blocks.

    :raises UserClusterError: it can't be read, or lacks something.
    :raises KubernetesLoginError: its exec plugin fails.
    """
    login = KubeconfigLogin(kubeconfig)
    found = login.load()
    configuration, cluster_context = found.configuration, found.loader.current_context or {}
    certificate = None
    if configuration.cert_file:
        certificate = ClientCertificate(configuration.cert_file, configuration.key_file or None)
    verifies = kubeconfig.verify_tls and configuration.verify_ssl
    return ApiServer(
        url=configuration.host or "",
        access=Access(login, certificate, configuration.tls_server_name, configuration.proxy),
        credentials=kubeconfig.shown,
        namespace=(cluster_context.get("context") or {}).get("namespace") or "default",
        verify=(configuration.ssl_ca_cert or True) if verifies else False,
    )


@dataclass(frozen=True)
class _Loaded:
    loader: KubeConfigLoader
    configuration: Configuration
    load_again: float
    """By the monotonic clock."""


class KubeconfigLogin:
    """The credentials of a kubeconfig's user; loaded again before they expire, by one thread at a time."""

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self._kubeconfig = kubeconfig
        self._loaded: _Loaded | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """See :class:`~airflow_provider_raybatch.cluster.jobs_api.access.Login`."""
        return self._kubeconfig.identity

    async def header(self) -> str | None:
        """See :class:`~airflow_provider_raybatch.cluster.jobs_api.access.Login`."""
        loaded = self._loaded
        if loaded is None or time.monotonic() >= loaded.load_again:
            loaded = await asyncio.to_thread(self.load)
        return loaded.configuration.api_key.get("BearerToken")

    def refused(self, header: str | None) -> None:
        """See :class:`~airflow_provider_raybatch.cluster.jobs_api.access.Login`."""
        loaded = self._loaded
        if loaded is not None and loaded.configuration.api_key.get("BearerToken") == header:
            self._loaded = None

    def load(self) -> _Loaded:
        """The credentials, loaded if they have expired. Blocks."""
        with self._lock:
            known = self._loaded
            if known is not None and time.monotonic() < known.load_again:
                return known
            try:
                # In a thread of its own: this one may have an event loop.
                loaded = call_within(2 * _LOAD_SECONDS, lambda: _run(self._kubeconfig))
            except ClusterError:
                if known is None:
                    raise
                # A plugin may fail for a while; what it gave before holds until the server refuses it.
                loaded = replace(known, load_again=time.monotonic() + _FAILED_WAIT)
            self._loaded = loaded
            return loaded


def _run(kubeconfig: Kubeconfig) -> _Loaded:
    with asyncio.Runner(loop_factory=_PluginLoop) as runner:
        return runner.run(_load(kubeconfig))


class _PluginLoop(asyncio.SelectorEventLoop):
    """Starts exec plugins as the library does not: without our input, which Airflow's messages come by.

    A plugin that hangs ends with the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._plugins: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(  # type: ignore[override]
        self, factory: Any, *command: Any, **options: Any
    ) -> Any:
        """See :meth:`asyncio.loop.subprocess_exec`."""
        try:
            found = await super().subprocess_exec(factory, *command, **options | {"stdin": DEVNULL})
        except OSError as error:
            from kubernetes_asyncio.config import ConfigException

            raise ConfigException(f"exec: {command[0]} can't be started: {error.strerror}") from None
        self._plugins.append(found[0])
        return found

    def close(self) -> None:
        """End what has not ended."""
        for plugin in self._plugins:
            plugin.close()
        super().close()


async def _load(kubeconfig: Kubeconfig) -> _Loaded:
    try:
        from kubernetes_asyncio.client import Configuration
        from kubernetes_asyncio.config import kube_config
    except ImportError:
        raise UserClusterError(
            "A kubeconfig needs kubernetes_asyncio, which is not installed here; install "
            "airflow-provider-raybatch[kubernetes]."
        ) from None
    configuration = Configuration()
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            loader = _loader(kubeconfig, kube_config)
            await loader.load_and_set(configuration)
    except TimeoutError:
        raise KubernetesLoginError(
            f"{kubeconfig.shown}: its exec plugin gave no credentials within {_LOAD_SECONDS:.0f} s; run its "
            "command by hand where this task runs."
        ) from None
    except Exception as error:  # the library raises what a kubeconfig leads it to
        raise _unusable(kubeconfig, error) from None
    return _Loaded(loader, configuration, _load_again(loader))


def _loader(kubeconfig: Kubeconfig, kube_config: Any) -> KubeConfigLoader:
    # The library writes certificates that are data into temporary files once; others may remove these.
    written = getattr(kube_config, "_temp_files", {})
    for content, path in list(written.items()):
        if not Path(path).exists():
            del written[content]
    source = kubeconfig.source
    if isinstance(source, str):
        merged = kube_config.KubeConfigMerger(source)
        node = merged.config
        if node is None:
            raise ValueError(f"there is no file {source!r}")
        persist = merged.save_changes
    else:
        node, persist = kube_config.ConfigNode(kubeconfig.shown, json.loads(json.dumps(source))), None
    return kube_config.KubeConfigLoader(  # type: ignore[no-any-return]
        node, active_context=kubeconfig.context, config_base_path=None, config_persister=persist
    )


def _load_again(loader: KubeConfigLoader) -> float:
    expiry = getattr(loader, "exec_plugin_expiry", None)
    if isinstance(expiry, datetime):
        left = (expiry - datetime.now(UTC)).total_seconds()
        return time.monotonic() + max(left - _BEFORE_EXPIRY, _LOAD_AGAIN / 4)
    user = getattr(loader, "_user", None)
    if user is not None and "exec" in user:
        return float("inf")  # as kubectl: kept until the server refuses it
    return time.monotonic() + _LOAD_AGAIN


def _unusable(kubeconfig: Kubeconfig, error: Exception) -> ClusterError:
    cause = cut_to(plain_reason(error), _LONGEST_CAUSE)
    if cause.startswith("exec:"):
        return KubernetesLoginError(
            f"{kubeconfig.shown}: its exec plugin fails ({cause}); run its command by hand where this task "
            "runs, and log in again."
        )
    context = f"context {kubeconfig.context!r} of " if kubeconfig.context else ""
    return UserClusterError(
        f"{kubeconfig.shown}: {context}the kubeconfig can't be used ({cause}); "
        "correct it, or try it with `kubectl get pods`."
    )


def default_paths() -> str | None:
    """Paths of the kubeconfig that kubectl would read; ``None`` if there is none."""
    paths = os.environ.get("KUBECONFIG") or "~/.kube/config"
    found = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    return os.pathsep.join(found) or None
