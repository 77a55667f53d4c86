# SPDX-License-Identifier: Apache-2.0
"""The Batch API's web app, which Airflow's API server mounts beside its own: files, batches and models.

All answers are JSON in OpenAI's form, also those about unknown paths and defects, and carry a request id.
FastAPI resolves the annotations of routes in their own modules, so all that they name is imported there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from airflow_provider_raybatch.batch_api.server import batches, files
from airflow_provider_raybatch.batch_api.server.limits import api_limits
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.service import BatchService
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.plugins.web import HEADERS

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


_log = logging.getLogger(__name__)

_ROUTERS: Sequence[APIRouter] = (files.router, batches.router)
_DEFECT = "The server had an error; the log of Airflow's API server has it under this request's x-request-id."
_UNUSABLE = "The Batch API of this Airflow can't be used just now; ask its admin."
_PATHS = {
    404: "There is no such path; the Batch API has /files, /batches and /models below its base_url.",
    405: "This path does not have this method.",
}


def make_batch_app() -> FastAPI | None:
    """The app; ``None`` where ``[raybatch] batch_api_root`` is not set.

    With a setting that can't be used, it answers each call with 503 and says why in the log.
    """
    try:
        settings, limits = batch_api_settings(), api_limits()
    except SpecError as error:
        return _unusable(str(error))
    if settings is None:
        return None
    app = _new_app()
    app.state.service = BatchService(settings, limits)
    for router in _ROUTERS:
        app.include_router(router)
    return app


class _App(FastAPI):
    """Sees its answers on their way out; a middleware would miss those about defects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        answering = Answering(scope, send)
        try:
            await super().__call__(scope, receive, answering.send)
        except Exception as error:
            answering.failed(error)


def _new_app() -> FastAPI:
    app = _App(
        title="Ray Batch: the Batch API",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # its answer is not JSON
    )
    app.add_exception_handler(OpenAiError, _refused)
    app.add_exception_handler(HTTPException, _by_path)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RaybatchError, _unavailable)
    app.add_exception_handler(Exception, _failed)
    return app


def _unusable(reason: str) -> FastAPI:
    app = _new_app()

    async def refuse(request: Request) -> JSONResponse:
        _log.error("The Batch API can't be used: %s", reason)
        raise OpenAiError(503, _UNUSABLE)

    _log.error("The Batch API can't be used: %s", reason)
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    app.add_route("/{path:path}", refuse, methods=methods)
    return app


async def _refused(request: Request, error: Any) -> JSONResponse:
    return JSONResponse(error.body, error.status, headers=error.headers)


async def _by_path(request: Request, error: Any) -> JSONResponse:
    message = _PATHS.get(error.status_code, "The request can't be answered.")
    refusal = OpenAiError(error.status_code, message, headers=getattr(error, "headers", None))
    return await _refused(request, refusal)


async def _invalid(request: Request, error: Any) -> JSONResponse:
    first = error.errors()[0]
    param = ".".join(str(one) for one in first["loc"][1:]) or None
    return await _refused(
        request, OpenAiError(400, f"{param or 'request'}: {first['msg']}; correct it.", param=param)
    )


async def _unavailable(request: Request, error: Any) -> JSONResponse:
    _log.error("The Batch API can't do its work: %s", error)
    return await _refused(request, OpenAiError(503, _UNUSABLE))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return await _refused(request, OpenAiError(500, _DEFECT))
