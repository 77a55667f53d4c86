# SPDX-License-Identifier: Apache-2.0
"""A proxy whose clients believe that the server has failed, when it has done what they asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.support.http_server import Handler, listening

_OF_A_CONNECTION = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "transfer-encoding",
    "content-encoding",
}


@dataclass
class ForgetfulProxy:
    """Forwards requests, and answers 503 to the first ones that make something below a path.

    :param server: where requests go, as ``http://127.0.0.1:8080``.
    :param path: whose first `lost` POSTs are forwarded, and their answers lost.
    :ivar url: where it listens.
    :ivar answers: of the server to these POSTs, also to later ones.
    """

    server: str
    path: str
    lost: int = 1
    url: str = ""
    answers: list[httpx.Response] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def forgetful(server: str, path: str, lost: int = 1) -> Iterator[ForgetfulProxy]:
    """Run such a proxy on a free port of the loopback interface."""
    proxy = ForgetfulProxy(server, path, lost)
    http = httpx.Client(base_url=server, timeout=120)

    class Forward(Handler):
        def forward(self) -> None:
            given = {name.lower(): value for name, value in self.headers.items()}
            kept = {name: value for name, value in given.items() if name not in _OF_A_CONNECTION}
            answer = http.request(self.command, self.path, headers=kept, content=self.body())
            if self.command == "POST" and self.path == path:
                proxy.headers.append(given)
                proxy.answers.append(answer)
                if len(proxy.answers) <= proxy.lost:
                    self.send(503, b"the proxy has lost the answer")
                    return
            headers = {name: value for name, value in answer.headers.items() if name not in _OF_A_CONNECTION}
            self.send(
                answer.status_code, answer.content, {**headers, "Content-Length": str(len(answer.content))}
            )

        do_GET = do_POST = do_DELETE = forward  # noqa: N815 - the names that HTTP's methods have here

    with http, listening(Forward) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
