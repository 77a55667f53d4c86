# SPDX-License-Identifier: Apache-2.0
"""An S3 API with faults: a proxy before a working server, with faults by seed.

The worst fault is the lost answer: the call is done, and the client does not know. If it repeats a creation,
the name is taken, by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from airflow_provider_raybatch.storage.errors import RetryLimits
from tests.support.s3_server import S3Server

BRIEF = RetryLimits(connect=1, answer=0.1, repeat=0.1, whole=0.2, first_pause=0.01, longest_pause=0.05)
"""For stores that are down for good."""

ONCE = RetryLimits(repeat=0, repeats=0, whole=0)
"""A fault ends the call at once, and slowness is no fault."""


class Fault(Enum):
    """The effect on a call."""

    ERROR_500 = "answers 500 InternalError, and does nothing"
    ERROR_503 = "answers 503 SlowDown, and does nothing"
    SLOW = "answers after a while"
    SILENT = "never answers, and does nothing"
    CUT_REQUEST = "closes the connection in the middle of the request"
    CUT_ANSWER = "does it, and closes the connection in the middle of the answer"
    LOST = "does it, and closes the connection without an answer"
    LOST_SILENT = "does it, and never answers"
    CONFLICT = "answers 409 ConditionalRequestConflict, and does nothing"
    FORGOTTEN = "answers 404 NoSuchUpload, and does nothing"


OF_ANY_CALL = tuple(fault for fault in Fault if fault not in {Fault.CONFLICT, Fault.FORGOTTEN})
_CODES = {
    Fault.ERROR_500: (500, "InternalError"),
    Fault.ERROR_503: (503, "SlowDown"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.FORGOTTEN: (404, "NoSuchUpload"),
}


@dataclass(frozen=True)
class Call:
    """A received call: `number` counts calls from 0, `target` is path and query."""

    number: int
    method: str
    target: str


Choose = Callable[[Call], Fault | None]


def by_seed(seed: int, share: float, kinds: Sequence[Fault] = OF_ANY_CALL) -> Choose:
    """Return faults for `share` of the calls; the same seed gives the same calls."""

    def choose(call: Call) -> Fault | None:
        chance = random.Random(f"{seed}-{call.number}")
        return chance.choice(kinds) if chance.random() < share else None

    return choose


def first(fault: Fault, times: int = 1, method: str = "") -> Choose:
    """Return `fault` for the first `times` calls, of one method or of all."""
    left = [times]

    def choose(call: Call) -> Fault | None:
        if left[0] <= 0 or method not in {"", call.method}:
            return None
        left[0] -= 1
        return fault

    return choose


def after(number: int, fault: Fault) -> Choose:
    """Return `fault` for every call from the given one on."""
    return lambda call: fault if call.number >= number else None


@dataclass
class FaultyS3:
    """The proxy. Set `choose` to change the faults from the next call on.

    :param api: the address for clients.
    :param slow: seconds that a slow answer takes.
    """

    api: S3Server
    choose: Choose = field(default=lambda call: None)
    slow: float = 0.3
    calls: list[Call] = field(default_factory=list)
    faults: Counter[Fault] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def came_in(self, method: str, target: str) -> Fault | None:
        with self.lock:
            call = Call(len(self.calls), method, target)
            self.calls.append(call)
            fault = self.choose(call)
            if fault:
                self.faults[fault] += 1
            return fault


@contextlib.contextmanager
def faulty(behind: S3Server, choose: Choose = lambda call: None, slow: float = 0.3) -> Iterator[FaultyS3]:
    """Serve a proxy on its own port before `behind`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = FaultyS3(S3Server(f"http://127.0.0.1:{server.server_address[1]}"), choose, slow)
    server.proxy, server.behind = proxy, urlsplit(behind.url).netloc
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    proxy: FaultyS3
    behind: str

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that go away, which is expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms until its head is confirmed
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _call(self) -> None:
        fault = self.server.proxy.came_in(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault is Fault.CUT_REQUEST:
            self.rfile.read(length // 2)
            self._reset()
            return
        body = self.rfile.read(length)
        if fault in _CODES:
            self._answer(_CODES[fault][0], [("Content-Type", "application/xml")], _xml(_CODES[fault][1]))
            return
        if fault is Fault.SLOW:
            self.server.proxy.closing.wait(self.server.proxy.slow)
        if fault is Fault.SILENT:
            self._never()
            return
        status, headers, content = self._upstream(body)
        if fault is Fault.LOST:
            self._reset()
        elif fault is Fault.LOST_SILENT:
            self._never()
        else:
            self._answer(status, headers, content, cut=fault is Fault.CUT_ANSWER)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _call  # noqa: N815 - the base class looks for these

    def _upstream(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        size = length if self.command == "HEAD" and length else str(len(content))
        if status != 204:
            self.send_header("Content-Length", size)
        self.end_headers()
        if cut:
            self.wfile.write(content[: len(content) // 2])
            self._reset()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def _never(self) -> None:
        """Hold the connection until the client gives up."""
        self.close_connection = True
        while not self.server.proxy.closing.is_set():
            ready, _, _ = select.select([self.connection], [], [], 0.1)
            if ready and not self.connection.recv(4096):
                return

    def _reset(self) -> None:
        """Close without a shutdown: the client sees a reset connection."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()


def _xml(code: str) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<Error><Code>{code}</Code><Message>Please try again.</Message></Error>"
    ).encode()
