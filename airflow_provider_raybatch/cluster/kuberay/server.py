# SPDX-License-Identifier: Apache-2.0
"""Where a Kubernetes API server is, and how it is reached."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_raybatch.cluster.jobs_api.access import Access
from airflow_provider_raybatch.contract.shown_uri import shown_uri


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
