# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a Kubernetes' API server over HTTP: real sockets, real paths, optional TLS.

::

    with serving(ApiServer()) as web:
        server = web.server
        server.access.grant("airflow", RULES, namespace="default", token="t")
        ...  # http://127.0.0.1:PORT is web.url; see credentials.py for a kubeconfig
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes import refusals
from tests.support.kubernetes.access import User
from tests.support.kubernetes.faults import ConnectionLostError
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.paths import Target, target_of
from tests.support.kubernetes.proxying import forwarded
from tests.support.kubernetes.server import MERGE_PATCH, ApiServer


class WebServer:
    """An API server on a free port of the loopback interface, or on `port`.

    :param tls: with the server's certificate; a client with a certificate for an account needs no token.
    """

    def __init__(self, server: ApiServer, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.server = server
        self.tls = tls
        handler = type("Handler", (_Handler,), {"api": server, "tls": tls})
        self._http = _Server(("127.0.0.1", port), handler)
        self.port = self._http.server_port
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """End it; its port is free."""
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def serving(server: ApiServer, *, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Serve a stand-in for the length of a block."""
    web = WebServer(server, port=port, tls=tls)
    try:
        yield web
    finally:
        web.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of a client that is gone or distrusts the certificate."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: ApiServer
    tls: ssl.SSLContext | None

    def setup(self) -> None:
        if self.tls is not None:  # in the thread of the connection, so that no client holds up others
            self.request = self.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def _handle(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        try:
            user = self._user()
            target = target_of(parts.path)
            if target is not None and target.subresource == "proxy":
                self._proxy(user, target, parts.query, content)
            else:
                body, warnings = self._answer(user, parts.path, target, query, content)
                self._reply(201 if self.command == "POST" else 200, body, warnings)
        except refusals.RefusedError as refusal:
            self._refuse(refusal)
        except ConnectionLostError:
            self._break()

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names of http.server

    def _user(self) -> User:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer":
            return self.api.access.user_of(token)
        shown = self.request.getpeercert() if self.tls is not None else None
        subject = {key: value for part in (shown or {}).get("subject", ()) for key, value in part}
        if (name := subject.get("commonName")) in self.api.access.users:
            return self.api.access.users[name]
        raise refusals.unauthorized()

    def _answer(
        self, user: User, path: str, target: Target | None, query: dict[str, str], content: bytes
    ) -> tuple[Manifest, list[str]]:
        if path == "/version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0+stand-in"}, []
        if target is None or target.subresource not in {"", "status"}:
            raise refusals.not_served()
        kind, namespace, name = target.resource.kind, target.namespace, target.name
        if self.command == "GET":
            if name:
                return self.api.get(user, kind, namespace, name), []
            return self.api.list(user, kind, namespace, **_selection(query)), []
        body = json.loads(content or b"{}")
        options: dict[str, Any] = {"validation": query.get("fieldValidation", "Warn")}
        match self.command:
            case "POST" if not name:
                return self.api.create(user, kind, namespace, body, **options)
            case "PATCH" if name:
                options |= {"subresource": target.subresource, "content_type": self._content_type()}
                return self.api.patch(user, kind, namespace, name, body, **options)
            case "DELETE" if name:
                return self._delete(user, target, query, body), []
        text = "the server does not allow this method on the requested resource"
        raise refusals.RefusedError(405, "MethodNotAllowed", text)

    def _delete(self, user: User, target: Target, query: dict[str, str], body: Manifest) -> Manifest:
        return self.api.delete(
            user,
            target.resource.kind,
            target.namespace,
            target.name,
            uid=(body.get("preconditions") or {}).get("uid"),
            propagation=body.get("propagationPolicy") or query.get("propagationPolicy") or "Background",
        )

    def _content_type(self) -> str:
        return (self.headers.get("Content-Type") or MERGE_PATCH).partition(";")[0]

    def _proxy(self, user: User, target: Target, query: str, content: bytes) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower() != "authorization"}
        code, answered, body = forwarded(self.api, user, target, self.command, query, headers, content)
        self.send_response(code)
        for key, value in answered.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reply(self, code: int, body: Manifest, warnings: list[str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        for warning in warnings:
            self.send_header("Warning", f"299 - {json.dumps(warning)}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, refusal: refusals.RefusedError) -> None:
        content = json.dumps(refusal.body()).encode() if refusal.reason else refusal.message.encode()
        self.send_response(refusal.code)
        self.send_header(
            "Content-Type", "application/json" if refusal.reason else "text/plain; charset=utf-8"
        )
        if refusal.after is not None:
            self.send_header("Retry-After", str(refusal.after))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _break(self) -> None:
        """Reset the connection instead of an answer."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The time by the clock of the server, which need not be this machine's."""
        return super().date_time_string(int(self.api.clock.now()) if timestamp is None else timestamp)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _selection(query: dict[str, str]) -> dict[str, Any]:
    selection = {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}
    limit = int(query.get("limit") or 0)
    return {**selection, "limit": limit or None, "after": query.get("continue", "")}
