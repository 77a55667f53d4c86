# SPDX-License-Identifier: Apache-2.0
"""Headers of each answer of the plugin, also of refusals: its addresses open outside of a frame, too."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-store",
    "Referrer-Policy": "no-referrer",
}


def safely(send: Send) -> Send:
    """`send` of a request, which sets :data:`HEADERS` on its answer."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return with_headers
