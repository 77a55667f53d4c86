# SPDX-License-Identifier: Apache-2.0
"""How a server that stands before a dashboard is entered: credentials that expire, a certificate, a proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_raybatch.cluster.jobs_api.tls import ClientCertificate


class Login(Protocol):
    """What proves to a server who asks, and is renewed before it expires."""

    @property
    def identity(self) -> str:
        """Equal for logins that are the same; may hold secrets, so it is never shown."""

    async def header(self) -> str | None:
        """Value of the `Authorization` header now; ``None`` if a certificate alone says who asks.

        :raises ClusterError: no credentials can be had.
        """

    def refused(self, header: str | None) -> None:
        """The server refused this value (401): have another one made for the next request."""


@dataclass(frozen=True)
class Access:
    """Credentials and way to a server.

    :param server_name: name that the server's certificate is for, if not its host's.
    :param proxy: url of an HTTP proxy to go through; ``None`` for the environment's.
    :param direct: whether to go through no proxy at all, whatever the environment names.
    """

    login: Login = field(repr=False)
    certificate: ClientCertificate | None = None
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    direct: bool = False

    @property
    def identity(self) -> list[object]:
        """All that a connection depends on; holds secrets, so it is never shown."""
        certificate = self.certificate
        files = [certificate.certificate, certificate.key] if certificate else []
        return [self.login.identity, *files, self.server_name, self.proxy, self.direct]
