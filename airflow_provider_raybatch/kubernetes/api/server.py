# SPDX-License-Identifier: Apache-2.0
"""Where a Kubernetes API server is and how it is reached; also by the pod that this process runs in."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_raybatch.cluster.jobs_api.access import Access
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.contract.text import shown_uri
from airflow_provider_raybatch.kubernetes.api.errors import (
    ApiRefusal,
    ApiRequest,
    KubernetesLoginError,
    refusal_error,
)


@dataclass(frozen=True)
class ApiServer:
    """A Kubernetes API server.

    :param url: ``http(s)://host[:port][/prefix]``.
    :param access: credentials and way.
    :param credentials: where the credentials come from, as messages name it.
    :param namespace: used where none is named.
    :param verify: TLS verification: ``True`` (system's and bundled roots), ``False``, or the path of a CA
        bundle.
    :param inside: whether this process runs in a pod of the server's own cluster, and so reaches its
        services.
    """

    url: str
    access: Access
    credentials: str
    namespace: str = "default"
    verify: bool | str = True
    inside: bool = False

    @property
    def base(self) -> str:
        """The url without a trailing slash."""
        return self.url.rstrip("/")

    @property
    def shown(self) -> str:
        """The url as it may stand in a message."""
        return shown_uri(self.url)

    def refusal_error(self, request: ApiRequest, refusal: ApiRefusal) -> ClusterError:
        """The error that an answer of this server is."""
        return refusal_error(self.shown, self.credentials, request, refusal)


FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts a pod's token, CA bundle and namespace."""


def pod_server() -> ApiServer | None:
    """The API server of this pod's cluster; ``None`` outside of pods. Reads files, so it blocks."""
    folder = FOLDER
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    token, authority, namespace = (folder / name for name in ("token", "ca.crt", "namespace"))
    if not host or not port or not all(one.is_file() for one in (token, authority, namespace)):
        return None
    return ApiServer(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        access=Access(TokenFile(token), direct=True),
        credentials="this pod's service account",
        namespace=namespace.read_text().strip() or "default",
        verify=str(authority),
        inside=True,
    )


class TokenFile:
    """A bearer token in a file that others replace, so each request reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def identity(self) -> str:
        """The path: all readers of the file share what it holds."""
        return f"token {self._path}"

    async def header(self) -> str | None:
        """See :class:`~airflow_provider_raybatch.cluster.jobs_api.access.Login`."""
        try:
            return f"Bearer {(await asyncio.to_thread(self._path.read_text)).strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise KubernetesLoginError(
                f"The service account's token {str(self._path)!r} can't be read ({error}); mount it into "
                "this pod (`automountServiceAccountToken: true`)."
            ) from None

    def refused(self, header: str | None) -> None:
        """The next request reads the file again anyway."""
