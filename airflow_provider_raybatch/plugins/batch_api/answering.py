# SPDX-License-Identifier: Apache-2.0
"""Each answer of the Batch API on its way out: headers, the request id, and what becomes of exceptions."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from airflow_provider_raybatch.plugins.headers import HEADERS

_log = logging.getLogger(__name__)

_STALLED = 120.0
"""Seconds after which a client is given up that does not take the next part, 1 MiB at most."""


class _CutOffError(Exception):
    """Ends the connection of an answer that can't be completed, so that no client takes it for whole."""


class Answering:
    """The answer to one request.

    :param send: of the server.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = f"req_{secrets.token_hex(16)}"
        self._path, self._method = scope.get("path", ""), scope.get("method", "")
        self._send = send
        self._is_complete = False
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        """Send a part of it.

        :raises TimeoutError: the client does not take it.
        """
        if message["type"] == "http.response.start":
            # Else Airflow's middleware compresses it in the event loop, and drops the length of a file.
            plain = {"Content-Encoding": "identity"}
            MutableHeaders(scope=message).update({**HEADERS, **plain, "x-request-id": self.request_id})
        async with asyncio.timeout(_STALLED):
            await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True

    def failed(self, error: Exception) -> None:
        """Log an exception without its text, which may hold what the request held.

        :raises Exception: the answer has begun and can't be completed.
        """
        frames = "".join(traceback.format_tb(error.__traceback__))
        _log.error("%s: %s in the Batch API.\n%s", self.request_id, type(error).__name__, frames.rstrip())
        if not self._is_complete:
            raise _CutOffError(self.request_id) from None
