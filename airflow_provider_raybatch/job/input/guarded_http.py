# SPDX-License-Identifier: Apache-2.0
"""``urllib`` that connects only to addresses that a source may have, also after a redirect.

A server may redirect to any address, and the job can reach the cluster's own network, and the service that
gives a node its credentials. A host that the user named may be anywhere but at a link-local address. A public
host may redirect only to public ones, and no host from https to http. The address that was checked is the one
that is connected to: a second lookup of its name could give another one.

What a row names is read within :class:`Bounds`: from few hosts, at public addresses, until a deadline.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import ipaddress
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import shown_uri
from airflow_provider_raybatch.storage.errors import StorageError

_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Services for nodes' credentials that are not link-local: Azure, Alibaba, Oracle, AWS, Google."""
_WITH_IPV4_AT_THE_END = tuple(
    map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"))
)
"""IPv4-compatible, IPv4-mapped, and NAT64 (RFC 6052, RFC 8215)."""


class Reach(Enum):
    """Who can be at an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """This machine, its network, or a range without a meaning of its own."""
    NEVER = "link-local"
    """Link-local, where clouds serve a node's credentials, or another such service."""


def reach_of(address: str) -> Reach:
    """Who can be at an IP address. An IPv6 address that carries one of IPv4 is judged by that."""
    ip = _carried(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_link_local or ip in _METADATA:
        return Reach.NEVER
    is_local = ip.is_multicast or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local)
    return Reach.PUBLIC if ip.is_global and not is_local else Reach.PRIVATE


def _carried(ip: _Address) -> _Address:
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if any(ip in network for network in _WITH_IPV4_AT_THE_END):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)


_AGENT = {"User-Agent": "airflow-provider-raybatch"}
_MOST_REDIRECTS = 5


class NotFollowedError(StorageError):
    """An address or a redirect is refused.

    :ivar what: the beginning of a sentence: what leads where.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"source: {what}, which is not followed; name the file where it lies, or copy it into a bucket.",
            FailureClass.USER_ERROR,
        )
        self.what = what


@dataclass(frozen=True)
class Bounds:
    """What a request must stay within, also after redirects.

    :param hosts: names in lower case; each is read over https, from port 443 of public addresses.
    :param deadline: by `time.monotonic`; until the last byte. Servers that send a byte now and then would
        never reach the timeout of a socket.
    """

    hosts: frozenset[str]
    deadline: float

    @property
    def seconds_left(self) -> float:
        """:raises TimeoutError: none."""
        if (left := self.deadline - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        return left

    def allow(self, url: str) -> bool:
        """Whether a URL may be read."""
        parts = urlsplit(url)
        return parts.scheme == "https" and parts.hostname in self.hosts and parts.port in {None, 443}


class GuardedRequest(urllib.request.Request):
    """A GET.

    :param span: of bytes, as the header ``Range`` has it; redirects keep it.
    :param login: as the header ``Authorization`` has it; only redirects to the same server keep it.
    :param bounds: for a request that a row asks for.

    :param named: the URL that led here, without its query; empty for one that the user named.
    :param is_after_public: whether a public host led here.
    :ivar is_public: whether its host is public; known once it is connected to.
    """

    is_public = is_proxied = False

    def __init__(
        self,
        url: str,
        span: str = "",
        login: str = "",
        bounds: Bounds | None = None,
        named: str = "",
        is_after_public: bool = False,
    ) -> None:
        own = {"Range": span, "Authorization": login}
        super().__init__(url, headers=_AGENT | {name: value for name, value in own.items() if value})
        self.span, self.login, self.bounds = span, login, bounds
        self.named, self.is_after_public = named, is_after_public

    def set_proxy(self, host: str, type: str) -> None:
        """Let a proxy of the environment fetch it."""
        self.is_proxied = True
        super().set_proxy(host, type)

    def resolve(self) -> list[Any]:
        """Addresses to connect to; empty for a request by a proxy.

        :raises NotFollowedError: one of them is refused.
        :raises OSError: the name has no address.
        """
        parts = urlsplit(self.full_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        flags = socket.AI_NUMERICHOST if self.is_proxied else 0
        try:
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM, flags=flags)
            addresses = [one[4] for one in found]
        except socket.gaierror:
            if not self.is_proxied:
                raise
            addresses = []
        reaches = {str(address[0]): reach_of(str(address[0])) for address in addresses}
        for address, reach in reaches.items():
            if reach is Reach.NEVER or (reach is Reach.PRIVATE and (self.is_after_public or self.bounds)):
                leads = f"{self.named} redirects to" if self.named else f"{shown_uri(self.full_url)} is at"
                why = f"the {reach.value} address {address}"
                whose = f", the address of {parts.hostname}" if parts.hostname != address else ""
                raise NotFollowedError(f"{leads} {why}{whose}")
        self.is_public = self.is_proxied or Reach.PUBLIC in reaches.values()
        return [] if self.is_proxied else addresses


def untrusted(error: Exception) -> str:
    """Why a server is not trusted, and what helps, as the end of a sentence; empty for any other error."""
    cause = getattr(error, "reason", error)
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return ""
    remedy = "set SSL_CERT_FILE on the nodes to the authority's PEM file"
    return f"its certificate is not trusted ({cause.verify_message}); {remedy}."


def promised(answer: http.client.HTTPResponse) -> int | None:
    """Bytes that an answer says to have."""
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def build_opener() -> urllib.request.OpenerDirector:
    """An opener for :class:`GuardedRequest`, by the environment's proxies where it has some.

    A host behind a proxy counts as public. The proxy resolves names, so only addresses in URLs are checked.
    """
    return urllib.request.build_opener(_Http, _Https, _Redirects)


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(_Connection, req), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(_SecureConnection, req), req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = _MOST_REDIRECTS
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.10 has none

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> GuardedRequest:
        """The next request, without the last one's other headers: a login for a proxy is one of them."""
        assert isinstance(req, GuardedRequest)
        fp.close()  # its body may be endless, and is read otherwise
        new = urlsplit(newurl)
        here = shown_uri(req.full_url)
        if new.scheme not in {"https", urlsplit(here).scheme}:
            raise NotFollowedError(f"{here} redirects to {shown_uri(newurl)}")
        if "@" in new.netloc:
            raise NotFollowedError(f"{here} redirects to {new.hostname} with a login")
        if req.bounds and not req.bounds.allow(newurl):
            raise NotFollowedError(f"{here} redirects to {shown_uri(newurl)}")
        old = urlsplit(req.full_url)
        is_same = (new.scheme, new.netloc) == (old.scheme, old.netloc)
        login = req.login if is_same else ""
        # All hosts after a public one are public.
        return GuardedRequest(newurl, req.span, login, req.bounds, named=here, is_after_public=req.is_public)


class _Connection(http.client.HTTPConnection):
    addresses: Sequence[Any] = ()

    def connect(self) -> None:
        if not self.addresses:  # a proxy's
            super().connect()
        else:
            self.sock = _connected(self.addresses, self.timeout)

    def guard(self, addresses: Sequence[Any], bounds: Bounds | None) -> _Connection:
        """Connect only to these addresses, and read within the bounds."""
        self.addresses = addresses
        if bounds is not None:
            self.timeout = bounds.seconds_left
            self.response_class = partial(_BoundedAnswer, bounds=bounds)  # type: ignore[assignment] # as one
        return self


class _BoundedAnswer(http.client.HTTPResponse):
    """An answer whose every byte comes before the deadline of `bounds`, those of its headers included."""

    def __init__(self, sock: socket.socket, *arguments: Any, bounds: Bounds, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_Bounded(self.fp.detach(), sock, bounds))


class _Bounded(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, bounds: Bounds) -> None:
        self._raw, self._sock, self._bounds = raw, sock, bounds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(self._bounds.seconds_left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """Wraps the socket that :meth:`_Connection.connect` opens."""


def _connecting(kind: type[_Connection], req: urllib.request.Request) -> Callable[..., _Connection]:
    assert isinstance(req, GuardedRequest)
    addresses, bounds = req.resolve(), req.bounds
    return lambda *arguments, **options: kind(*arguments, **options).guard(addresses, bounds)


def _connected(addresses: Sequence[Any], timeout: float | None) -> socket.socket:
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return socket.create_connection(address[:2], timeout)
    return socket.create_connection(last[:2], timeout)
