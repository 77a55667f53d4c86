# SPDX-License-Identifier: Apache-2.0
"""A small internet: names, addresses and sites of a test, over real HTTP, TLS and sockets of this machine.

Names and addresses that a test does not give are as they are.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_server import Authority, Handler, listening


@dataclass
class Answer:
    """What a site answers; `length` is what it promises, by default the truth, and ``None`` nothing.

    :param slow: ``headers`` or ``body`` for what comes byte by byte, with `pause` seconds before each.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"1"'})
    length: int | None = -1
    slow: str = ""
    pause: float = 0.05


@dataclass
class Asked:
    """A request that a server got."""

    url: str
    headers: dict[str, str]


class Web:
    """What there is, and what was asked.

    :ivar names: the addresses of a name; each lookup but the last takes one list away.
    :ivar sites: the answers of a URL; each request but the last takes one away.
    :ivar reached: addresses that were connected to.
    """

    def __init__(self) -> None:
        self.names: dict[str, deque[list[str]]] = {}
        self.sites: dict[str, deque[Answer]] = {}
        self.asked: list[Asked] = []
        self.reached: list[str] = []
        self.ports: dict[int, int] = {}

    def host(self, name: str, *lookups: str | list[str]) -> None:
        self.names[name] = deque([one] if isinstance(one, str) else one for one in lookups)

    def serve(self, url: str, *answers: Answer) -> str:
        """:returns: the URL."""
        self.sites[url] = deque(answers)
        return url

    def redirect(self, url: str, to: str) -> str:
        """:returns: the URL that redirects."""
        return self.serve(url, Answer(b"moved", 302, {"Location": to}))


def _next(waiting: deque[Any]) -> Any:
    return waiting.popleft() if len(waiting) > 1 else waiting[0]


@contextmanager
def a_web(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """Serve it; its certificate authority is the one that this process trusts."""
    web = Web()
    authority = Authority(folder)
    pem = authority.server("hub.example", "cdn.example", "lake.internal", "10.0.0.5")
    look_up, connect = socket.getaddrinfo, socket.create_connection

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        flags = options.get("flags", 0)
        if host not in web.names or flags & socket.AI_NUMERICHOST:
            return look_up(host, port, *arguments, **options)
        found = _next(web.names[host])
        return [look_up(one, port, type=socket.SOCK_STREAM)[0] for one in found]

    def create_connection(address: Any, *arguments: Any, **options: Any) -> socket.socket:
        host, port = address
        web.reached.append(host)
        # Whatever the address, it is the one machine that there is.
        return connect(("127.0.0.1", web.ports.get(port, port)), *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "create_connection", create_connection)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.pem))
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with listening(_site(web, "http")) as http, listening(_site(web, "https"), pem) as https:
        web.ports = {80: http, 443: https}
        yield web


def _site(web: Web, scheme: str) -> type[Handler]:
    class Site(Handler):
        protocol_version = "HTTP/1.0"

        def reply(self) -> None:
            path = self.path.partition("?")[0]
            url = path if "://" in path else f"{scheme}://{self.headers['Host']}{path}"  # by a proxy, or not
            web.asked.append(Asked(url, dict(self.headers)))
            answer: Answer = _next(web.sites.get(url) or deque([Answer(b"", 404)]))
            if answer.slow == "headers":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
                self.drip(b"x" * 60_000, answer.pause)
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.length is not None:
                length = answer.length if answer.length >= 0 else len(answer.body)
                self.send_header("Content-Length", str(length))
            self.end_headers()
            if answer.slow == "body":
                self.drip(answer.body, answer.pause)
            else:
                self.wfile.write(answer.body)

        def drip(self, content: bytes, pause: float) -> None:
            for byte in content:
                time.sleep(pause)
                self.wfile.write(bytes([byte]))

        do_GET = reply  # noqa: N815 - http.server's name

    return Site
