# SPDX-License-Identifier: Apache-2.0
"""Where a cluster's dashboard is, and how to talk to it."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from urllib.parse import urlsplit

from airflow_provider_raybatch.cluster.jobs_api.access import Access, tls_context, tls_version
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import shown_uri

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
    :param token_remedy: what to do where the cluster refuses a token that does not come from a connection.
    :param access: of a server before the dashboard that takes `Authorization` for itself, such as a
        Kubernetes API server; Ray's token is then one of `headers`.
    :raises SpecError: the url is not an http(s) url, or carries a login or a query; a header can't be sent.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    connect_timeout: float = 10.0
    request_timeout: float = 60.0
    token_remedy: str = ""
    access: Access | None = None

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
    def ca_remedy(self) -> str:
        """How to name the CA bundle that signed the server's certificate."""
        if self.access is not None:
            return "correct `certificate-authority` of the connection to Kubernetes"
        if self.token_remedy:  # no connection has a `ca_bundle` for it
            return "set SSL_CERT_FILE, where worker and triggerer run, to the CA bundle that signed it"
        return "set the connection's `ca_bundle` to the path of the CA bundle that signed it"

    @property
    def is_loopback(self) -> bool:
        """Whether the dashboard is on this very machine."""
        host = urlsplit(self.url).hostname or ""
        return host in {"localhost", "::1"} or host.startswith("127.")

    @property
    def is_direct(self) -> bool:
        """Whether no proxy from the environment can reach it: this machine, or a service of this cluster."""
        host = urlsplit(self.url).hostname or ""
        return self.is_loopback or host.endswith(".svc") or (self.access is not None and self.access.direct)

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
        # A login can't be dumped as plain data.
        own = json.dumps(asdict(replace(self, access=None)), sort_keys=True)
        return own if self.access is None else json.dumps([own, *self.access.identity])

    async def ca_bundle_version(self) -> object:
        """Changes when the files of CA bundle or client certificate do; ``None`` where there are none."""
        return await tls_version(self.verify, self.access.certificate if self.access else None)

    async def tls(self) -> ssl.SSLContext | bool:
        """What httpx takes as `verify`."""
        if urlsplit(self.url).scheme != "https" and self.verify is True:
            return False  # without TLS nothing is verified, and no roots need to be read
        return await tls_context(self.verify, self.access.certificate if self.access else None)
