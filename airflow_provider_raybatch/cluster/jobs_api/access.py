# SPDX-License-Identifier: Apache-2.0
"""How a server that stands before a dashboard is entered: TLS, credentials that expire, a proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from airflow_provider_raybatch.contract.failures import SpecError

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError


@dataclass(frozen=True)
class ClientCertificate:
    """What proves to a server who asks: paths of PEM files.

    :param key: path of the private key; ``None`` if the certificate's file holds it, too.
    """

    certificate: str
    key: str | None = None


async def tls_version(verify: bool | str, certificate: ClientCertificate | None = None) -> object:
    """Changes when one of the files does; ``None`` where there is none."""
    paths = _paths(verify, certificate)
    return await asyncio.to_thread(file_versions, paths) if paths else None


async def tls_context(
    verify: bool | str, certificate: ClientCertificate | None = None
) -> ssl.SSLContext | bool:
    """What httpx takes as `verify`.

    :param verify: ``True`` (system's and bundled roots), ``False``, or the path of a CA bundle.
    :raises SpecError: a file can't be read.
    """
    if verify is False and certificate is None:
        return False
    version = await tls_version(verify, certificate)
    try:
        return await asyncio.to_thread(_context, verify, certificate, version)
    except (OSError, ssl.SSLError) as error:
        if certificate is None:
            raise SpecError(
                f"verify: the CA bundle {verify!r} can't be read ({error}); name a PEM file."
            ) from None
        raise SpecError(
            f"client-certificate: {certificate.certificate!r}, its key or the CA bundle can't be read "
            f"({error}); name PEM files of a certificate and of its key."
        ) from None


@lru_cache(maxsize=64)
def _context(verify: bool | str, certificate: ClientCertificate | None, version: object) -> ssl.SSLContext:
    if verify is True:
        import httpx

        context = httpx.create_ssl_context()
    else:
        context = ssl.create_default_context(cafile=verify or None)
        # Python 3.13 refuses authorities without key identifiers, as many clusters' own ones are.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context


def _paths(verify: bool | str, certificate: ClientCertificate | None) -> list[str]:
    own = [certificate.certificate, certificate.key] if certificate else []
    return [path for path in [verify, *own] if isinstance(path, str)]


def file_versions(paths: Iterable[str | Path]) -> object:
    """Changes when one of the files does; blocks."""
    return tuple(_version_of(path) for path in paths)


def _version_of(path: str | Path) -> object:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


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
    :param refusal: called with the dashboard's url, without secrets, and with code and body of an answer: the
        error that the server itself has answered; ``None`` if the answer comes from what lies behind it.
    """

    login: Login = field(repr=False)
    certificate: ClientCertificate | None = None
    server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    direct: bool = False
    refusal: Callable[[str, int, bytes], ClusterError | None] = field(
        default=lambda *answer: None, repr=False, compare=False
    )

    @property
    def identity(self) -> list[object]:
        """All that a connection depends on; holds secrets, so it is never shown."""
        certificate = self.certificate
        files = [certificate.certificate, certificate.key] if certificate else []
        return [self.login.identity, *files, self.server_name, self.proxy, self.direct]
