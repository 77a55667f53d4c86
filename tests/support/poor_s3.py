# SPDX-License-Identifier: Apache-2.0
"""An S3 API that lacks conditional puts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.support.s3_server import WsgiApp

IF_NONE_MATCH, IF_MATCH = "HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"


class PoorStore:
    """A store that knows fewer headers of a put.

    :param lacks: the WSGI names of these headers.
    :param answer: to a put with one of them; ``""`` ignores the header.
    """

    def __init__(self) -> None:
        self.lacks: set[str] = set()
        self.answer = ""
        self.puts = 0

    def __call__(self, app: WsgiApp) -> WsgiApp:
        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] == "PUT":
                self.puts += 1
                for name in self.lacks & environ.keys():
                    if self.answer:
                        code = self.answer.partition(" ")[2].replace(" ", "")
                        start_response(self.answer, [("Content-Type", "application/xml")])
                        return [f"<Error><Code>{code}</Code></Error>".encode()]
                    del environ[name]
            return app(environ, start_response)

        return guarded
