# SPDX-License-Identifier: Apache-2.0
"""The plugin's web app: pages of reports and batches behind Airflow's own login and rights.

Each route asks for the right to read XComs of the DAG in its path, and reads what belongs to that DAG alone.
FastAPI resolves the annotations of routes in this module, so all that they name is imported here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Receive, Scope, Send

from airflow_provider_raybatch.batches.settings import batch_api_settings
from airflow_provider_raybatch.batches.store import batch_store, usable
from airflow_provider_raybatch.contract.batch_api import BatchState
from airflow_provider_raybatch.plugins import airflow_api
from airflow_provider_raybatch.plugins.headers import safely
from airflow_provider_raybatch.plugins.looking import Look, look_at
from airflow_provider_raybatch.plugins.pages import (
    Frame,
    batches_page,
    dataset_page,
    failed_rows_page,
    message_page,
    nights_page,
    report_page,
)
from airflow_provider_raybatch.plugins.task_key import NotShownError, TaskInstance
from airflow_provider_raybatch.plugins.threads import Readers
from airflow_provider_raybatch.report.rendering import render

_MOST = 100


@dataclass(frozen=True)
class OwnBatches:
    """What the page shows.

    :param states: newest first, at most 100.
    :param total: how many there are.
    """

    states: Sequence[BatchState] = field(default_factory=list)
    total: int = 0


def own_batches(owner: str) -> OwnBatches:
    """The newest batches of a user.

    :param owner: user id, as Airflow's auth manager has it.
    :raises NotShownError: this Airflow has no Batch API.
    """
    settings = batch_api_settings()
    if settings is None:
        raise NotShownError(
            "This Airflow has no Batch API: [raybatch] batch_api_root is not set; docs/batch_api tells how."
        )
    store = batch_store(settings)
    ids = [one.id for one in store.batches(owner)]

    def state(batch_id: str) -> BatchState | None:
        found = store.state(batch_id)
        # Keys are not signed, so they don't say whose a batch is.
        return found if found is not None and found.record.owner == owner else None

    return OwnBatches(usable(state, ids[:_MOST]), len(ids))


_log = logging.getLogger(__name__)

_PAGES: dict[str, Callable[[Look, Frame], str]] = {
    "": report_page,
    "failed": failed_rows_page,
    "dataset": dataset_page,
}
_DEFECT = "The report can't be shown; the log of Airflow's API server says why."
_INSTANCE = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}"
_FRAMES = frozenset({"iframe", "frame", "embed", "object"})

MapIndex = Annotated[int, BeforeValidator(lambda given: -1 if given == "{MAP_INDEX}" else given)]
"""Airflow's UI fills in a tab's path, but leaves the index of a task that is not mapped as it is."""

router = APIRouter(
    default_response_class=HTMLResponse,
    # Airflow checks the DAG in the path, which is the one that is read; a query can't name another one.
    dependencies=[Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.XCOM))],
)
readers = Readers()
own_pages = APIRouter(default_response_class=HTMLResponse)
"""Pages that are about their reader, so a login is all that they ask for."""


@own_pages.get("/batches")
async def batches(request: Request, user: GetUserDep) -> HTMLResponse:
    """The reader's own batches of the Batch API."""
    found = await readers.run(own_batches, str(user.get_id()))
    return HTMLResponse(batches_page(user.get_name(), found.states, found.total, _frame(request)))


@router.get(_INSTANCE)
async def report(request: Request, dag_id: str, run_id: str, task_id: str, map_index: MapIndex) -> Response:
    """The report of a task instance."""
    return await _page(request, TaskInstance(dag_id, run_id, task_id, map_index), "")


@router.get(_INSTANCE + "/failed")
async def failed(request: Request, dag_id: str, run_id: str, task_id: str, map_index: MapIndex) -> Response:
    """Its failed rows."""
    return await _page(request, TaskInstance(dag_id, run_id, task_id, map_index), "failed")


@router.get(_INSTANCE + "/dataset")
async def dataset(request: Request, dag_id: str, run_id: str, task_id: str, map_index: MapIndex) -> Response:
    """Its dataset."""
    return await _page(request, TaskInstance(dag_id, run_id, task_id, map_index), "dataset")


@router.get("/dags/{dag_id}/tasks/{task_id}")
async def nights(request: Request, dag_id: str, task_id: str) -> Response:
    """The last nights of a task."""

    async def make() -> HTMLResponse:
        shown = await airflow_api.last_nights(request, dag_id, task_id)
        return HTMLResponse(nights_page(dag_id, task_id, shown, _frame(request)))

    return await _answer(request, make)


async def _page(request: Request, ti: TaskInstance, name: str) -> Response:
    async def make() -> HTMLResponse:
        return await readers.run(read, await airflow_api.task_instance(request, ti))

    def read(known: Mapping[str, Any]) -> HTMLResponse:
        look = look_at(ti, known)
        status = 200 if look.refusal is None else look.refusal.status
        try:
            return HTMLResponse(_PAGES[name](look, _frame(request)), status)
        except Exception as error:  # a document may have numbers of any size
            _log.exception("The report of %s, run %s, can't be shown.", ti.task_id, ti.run_id)
            raise NotShownError(_DEFECT, 500) from error

    return await _answer(request, make)


async def _answer(request: Request, make: Callable[[], Awaitable[HTMLResponse]]) -> Response:
    """The page; in a tab of Airflow's, which is blank until its first bytes, after a word that it loads."""
    if not _frame(request).framed:
        return await make()
    # Without an encoding, Airflow's middleware would keep the first bytes until it has more to compress.
    headers = {"Content-Encoding": "identity"}
    return StreamingResponse(loading(request, make), media_type="text/html", headers=headers)


async def loading(request: Request, make: Callable[[], Awaitable[HTMLResponse]]) -> AsyncIterator[str]:
    """A page in two parts: the second one hides the first."""
    yield render("loading.jinja", title="Batch report").partition("</main>")[0]
    try:
        answer = await make()
    except NotShownError as error:
        answer = _refused(request, error)
    except StarletteHTTPException as error:
        answer = _by_airflow(request, error)
    except Exception as error:
        answer = _failed(request, error)
    yield bytes(answer.body).decode().partition("<main>")[2]


def _frame(request: Request) -> Frame:
    return Frame(framed=request.headers.get("sec-fetch-dest") in _FRAMES)


def _refused(request: Request, error: Any) -> HTMLResponse:
    return HTMLResponse(message_page("No report", str(error)), error.status)


def _by_airflow(request: Request, error: Any) -> HTMLResponse:
    """Airflow's own refusal of a caller, and paths that there are not."""
    sentences = {
        401: "You are not logged in to Airflow, or opened this page out of a frame; use a tab of its own.",
        403: "Airflow does not let you read the XComs of this DAG, so it shows you no reports of it.",
        404: "There is no such page.",
    }
    phrase = HTTPStatus(error.status_code).phrase
    page = message_page(phrase, sentences.get(error.status_code, phrase))
    return HTMLResponse(page, error.status_code, headers=getattr(error, "headers", None))


def _wrong_path(request: Request, error: Any) -> HTMLResponse:
    return HTMLResponse(message_page("No report", airflow_api.NO_INSTANCE), 404)


def _failed(request: Request, error: Exception) -> HTMLResponse:
    _log.exception("A page of a report can't be shown.", exc_info=error)
    page = message_page("No report", _DEFECT)
    return HTMLResponse(page, 500)


class _App(FastAPI):
    """Sets its headers on all answers; a middleware would miss those about defects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, safely(send))


def make_app() -> FastAPI:
    """The app, which Airflow's API server mounts."""
    app = _App(title="Ray Batch reports", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    app.include_router(own_pages)
    app.add_exception_handler(NotShownError, _refused)
    app.add_exception_handler(HTTPException, _by_airflow)
    app.add_exception_handler(StarletteHTTPException, _by_airflow)
    app.add_exception_handler(RequestValidationError, _wrong_path)
    app.add_exception_handler(Exception, _failed)
    return app
