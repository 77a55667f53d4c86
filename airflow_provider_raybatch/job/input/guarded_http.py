# SPDX-License-Identifier: Apache-2.0
"""``urllib`` that connects only to addresses that a source may have, also after a redirect.

A host that the user named may be anywhere but at a link-local address. A public host may redirect only to
public ones, and no host from https to http. The address that was checked is the one that is connected to: a
second lookup of its name could give another one.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.request
from collections.abc import Callable, Sequence
from typing import IO, Any
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.shown_uri import shown_uri
from airflow_provider_raybatch.job.input.addresses import Reach, reach_of
from airflow_provider_raybatch.storage.errors import StorageError

_AGENT = {"User-Agent": "airflow-provider-raybatch"}
_MOST_REDIRECTS = 5


class GuardedRequest(urllib.request.Request):
    """A GET.

    :param span: of bytes, as the header ``Range`` has it; redirects keep it.
    :param login: as the header ``Authorization`` has it; only redirects to the same server keep it.

    :ivar named: the URL that led here, without its query; empty for one that the user named.
    :ivar is_after_public: whether a public host led here.
    :ivar is_public: whether its host is public; known once it is connected to.
    """

    named = ""
    is_after_public = is_public = is_proxied = False

    def __init__(self, url: str, span: str = "", login: str = "") -> None:
        own = {"Range": span, "Authorization": login}
        super().__init__(url, headers=_AGENT | {name: value for name, value in own.items() if value})
        self.span, self.login = span, login

    def set_proxy(self, host: str, type: str) -> None:
        """Let a proxy of the environment fetch it."""
        self.is_proxied = True
        super().set_proxy(host, type)


def build_opener() -> urllib.request.OpenerDirector:
    """An opener for :class:`GuardedRequest`, by the environment's proxies where it has some.

    A host behind a proxy counts as public. The proxy resolves names, so only addresses in URLs are checked.
    """
    return urllib.request.build_opener(_Http, _Https, _Redirects)


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(_Connection, _checked(req)), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_connecting(_SecureConnection, _checked(req)), req)


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
            raise _refused(f"{here} redirects to {shown_uri(newurl)}")
        if "@" in new.netloc:
            raise _refused(f"{here} redirects to {new.hostname} with a login")
        old = urlsplit(req.full_url)
        is_same = (new.scheme, new.netloc) == (old.scheme, old.netloc)
        request = GuardedRequest(newurl, req.span, req.login if is_same else "")
        request.named = here
        request.is_after_public = req.is_public  # as all hosts after a public one are
        return request


class _Connection(http.client.HTTPConnection):
    addresses: Sequence[Any] = ()

    def connect(self) -> None:
        if not self.addresses:  # a proxy's
            super().connect()
        else:
            self.sock = _connected(self.addresses, self.timeout)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """Wraps the socket that :meth:`_Connection.connect` opens."""


def _connecting(kind: type[_Connection], addresses: Sequence[Any]) -> Callable[..., _Connection]:
    def connection(*arguments: Any, **options: Any) -> _Connection:
        made = kind(*arguments, **options)
        made.addresses = addresses
        return made

    return connection


def _connected(addresses: Sequence[Any], timeout: float | None) -> socket.socket:
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return socket.create_connection(address[:2], timeout)
    return socket.create_connection(last[:2], timeout)


def _checked(req: urllib.request.Request) -> list[Any]:
    """Addresses to connect to; empty for a request by a proxy.

    :raises StorageError: one of them is refused.
    :raises OSError: the name has no address.
    """
    assert isinstance(req, GuardedRequest)
    parts = urlsplit(req.full_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    flags = socket.AI_NUMERICHOST if req.is_proxied else 0
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM, flags=flags)
        addresses = [one[4] for one in found]
    except socket.gaierror:
        if not req.is_proxied:
            raise
        addresses = []
    reaches = {str(address[0]): reach_of(str(address[0])) for address in addresses}
    for address, reach in reaches.items():
        if reach is Reach.NEVER or (reach is Reach.PRIVATE and req.is_after_public):
            leads = f"{req.named} redirects to" if req.named else f"{shown_uri(req.full_url)} is at"
            why = f"the {reach.value} address {address}"
            whose = f", the address of {parts.hostname}" if parts.hostname != address else ""
            raise _refused(f"{leads} {why}{whose}")
    req.is_public = req.is_proxied or Reach.PUBLIC in reaches.values()
    return [] if req.is_proxied else addresses


def _refused(what: str) -> StorageError:
    return StorageError(
        f"source: {what}, which is not followed; name the file where it lies, or copy it into a bucket.",
        FailureClass.USER_ERROR,
    )
