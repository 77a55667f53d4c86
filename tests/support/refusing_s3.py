# SPDX-License-Identifier: Apache-2.0
"""A store that has one answer to all requests, over HTTP or with a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.http_server import HOST, Handler, listening


@contextmanager
def answering(
    status: int, body: str = "", pem: Path | None = None, asked: list[str] | None = None
) -> Iterator[str]:
    """Serve, and yield the URL.

    :param pem: key and certificate of a server that speaks TLS.
    :param asked: gets the path of each request, of a proxied one the URL.
    """

    class OneAnswer(Handler):
        def answer(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.body()
            self.send(status, body.encode())

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - http.server's names

    with listening(OneAnswer, pem) as port:
        yield f"{'http' if pem is None else 'https'}://{HOST}:{port}"
