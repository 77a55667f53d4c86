# SPDX-License-Identifier: Apache-2.0
"""Where a cluster's dashboard is, and how to talk to it."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.shown_uri import shown_uri

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a token of RFC 9110, section 5.6.2


@dataclass(frozen=True)
class ClusterAddress:
    """A Ray dashboard, which serves the Jobs API.

    :param url: ``http(s)://host[:port][/prefix]``.
    :param token: bearer token, sent as ``Authorization`` unless `headers` has one.
    :param headers: further headers, for proxies, as are `cookies`.
    :param verify: TLS verification: ``True`` (system's and bundled roots), ``False``, or the path of a CA
        bundle.
    :param connect_timeout: seconds until a connection must stand.
    :param request_timeout: seconds between two bytes of an answer.
    :raises SpecError: the url is not an http(s) url, or carries a login or a query; a header can't be sent.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    connect_timeout: float = 10.0
    request_timeout: float = 60.0

    def __post_init__(self) -> None:
        shown = self.shown.rpartition("@")[2]  # a login may stand in it in any way
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise SpecError(f"url: {shown!r} is not a url ({error}); write it as http://host:8265.") from None
        if parts.scheme not in {"http", "https"} or not host:
            raise SpecError(f"url: {shown!r} is not an http(s) url; write it as http://host:8265.")
        if parts.username is not None or parts.password is not None:
            raise SpecError(
                f"url: {self.shown} carries a login, which would end up in logs; put it into the "
                "connection's secret_headers."
            )
        # A list, since a header, a cookie and the token may have the same name.
        for name, value in [("token", self.token or ""), *self.headers.items(), *self.cookies.items()]:
            # Refused here, since the HTTP library's error would show the value.
            if not value.isascii() or not value.isprintable() or value != value.strip():
                raise SpecError(
                    f"{name}: its value has a space at an end, a line feed or the like that no header can "
                    "hold; enter it again."
                )
        for name in (*self.headers, *self.cookies):
            if not _NAME.fullmatch(name):
                raise SpecError(
                    f"{name}: a header or cookie can't have this name; use letters, digits and dashes alone."
                )
        if parts.query or parts.fragment:
            raise SpecError(
                f"url: {self.shown} must end at its path; the query or fragment after it can't be kept."
            )

    @property
    def base(self) -> str:
        """The url with a trailing slash, so that API paths are appended to its prefix."""
        return self.url.rstrip("/") + "/"

    @property
    def shown(self) -> str:
        """The url as it may stand in a message: without login, query and fragment."""
        return shown_uri(self.url)

    @property
    def is_loopback(self) -> bool:
        """Whether the dashboard is on this very machine."""
        host = urlsplit(self.url).hostname or ""
        return host in {"localhost", "::1"} or host.startswith("127.")

    def request_headers(self) -> dict[str, str]:
        """Headers of every request; Ray refuses POST and PUT of what looks like a browser."""
        headers = {
            "User-Agent": "airflow-provider-raybatch",
            "Accept": "*/*",
            "Accept-Encoding": "identity",  # a few bytes on the wire can't become many here
            **self.headers,
        }
        if self.token and not any(name.lower() == "authorization" for name in headers):
            headers["Authorization"] = f"Bearer {self.token}"
        return headers

    @property
    def identity(self) -> str:
        """All that a connection depends on; holds secrets, so it is never shown."""
        return json.dumps(asdict(self), sort_keys=True)

    async def ca_bundle_version(self) -> object:
        """Changes when the CA bundle's file does; ``None`` where there is none."""
        if isinstance(self.verify, bool):
            return None
        return await asyncio.to_thread(_version_of, self.verify)

    async def tls(self) -> ssl.SSLContext | bool:
        """What httpx takes as `verify`; made in a thread, since it reads files for some 30 ms, and kept."""
        if self.verify is False or (self.verify is True and urlsplit(self.url).scheme != "https"):
            return False  # without TLS nothing is verified, and no roots need to be read
        path = None if self.verify is True else self.verify
        try:
            return await asyncio.to_thread(_context, path, await self.ca_bundle_version())
        except (OSError, ssl.SSLError) as error:
            raise SpecError(
                f"verify: the CA bundle {self.verify!r} can't be read ({error}); name a PEM file."
            ) from None


@lru_cache(maxsize=16)
def _context(ca_bundle: str | None, version: object) -> ssl.SSLContext:
    if ca_bundle is None:
        import httpx

        return httpx.create_ssl_context()
    return ssl.create_default_context(cafile=ca_bundle)


def _version_of(path: str) -> object:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
