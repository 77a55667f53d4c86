# SPDX-License-Identifier: Apache-2.0
"""The plugin's web app: pages of reports behind Airflow's own login and rights.

Each route asks for the right to read XComs of the DAG in its path, and reads what belongs to that DAG alone.
FastAPI resolves the annotations of routes in this module, so all that they name is imported here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import Receive, Scope, Send

from airflow_provider_raybatch.plugins import airflow_api
from airflow_provider_raybatch.plugins.pages import (
    Frame,
    dataset_page,
    failed_rows_page,
    message_page,
    nights_page,
    report_page,
)
from airflow_provider_raybatch.plugins.reading import NotShownError, TaskInstance
from airflow_provider_raybatch.plugins.task_report import TaskReport, read_task_report
from airflow_provider_raybatch.plugins.web import Readers, safely
from airflow_provider_raybatch.report.rendering import render

_log = logging.getLogger(__name__)

_PAGES: dict[str, Callable[[TaskReport, Frame], str]] = {
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


@router.get(_INSTANCE)
@router.get(_INSTANCE + "/{page}")
async def report(
    request: Request,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: MapIndex,
    page: Literal["", "failed", "dataset"] = "",
) -> Response:
    """The report of a task instance, its failed rows, or its dataset."""
    ti = TaskInstance(dag_id, run_id, task_id, map_index)

    async def make() -> HTMLResponse:
        return await readers.run(read, await airflow_api.task_instance(request, ti))

    def read(known: Mapping[str, Any]) -> HTMLResponse:
        of_task = read_task_report(ti, known)
        status = 200 if of_task.refusal is None else of_task.refusal.status
        try:
            return HTMLResponse(_PAGES[page](of_task, frame_of(request)), status)
        except Exception as error:  # a document may have numbers of any size
            _log.exception("The report of %s, run %s, can't be shown.", ti.task_id, ti.run_id)
            raise NotShownError(_DEFECT, 500) from error

    return await _answer(request, make)


@router.get("/dags/{dag_id}/tasks/{task_id}")
async def nights(request: Request, dag_id: str, task_id: str) -> Response:
    """The last nights of a task."""

    async def make() -> HTMLResponse:
        shown = await airflow_api.last_nights(request, dag_id, task_id)
        return HTMLResponse(nights_page(dag_id, task_id, shown, frame_of(request)))

    return await _answer(request, make)


async def _answer(request: Request, make: Callable[[], Awaitable[HTMLResponse]]) -> Response:
    """The page; in a tab of Airflow's, which is blank until its first bytes, after a word that it loads."""
    if not frame_of(request).framed:
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


def frame_of(request: Request) -> Frame:
    """How a page was opened, as the browser says."""
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


def make_app(routers: Sequence[APIRouter] = ()) -> FastAPI:
    """The app, which Airflow's API server mounts.

    :param routers: of further pages.
    """
    app = _App(title="Ray Batch reports", docs_url=None, redoc_url=None, openapi_url=None)
    for one in (router, *routers):
        app.include_router(one)
    app.add_exception_handler(NotShownError, _refused)
    app.add_exception_handler(HTTPException, _by_airflow)
    app.add_exception_handler(StarletteHTTPException, _by_airflow)
    app.add_exception_handler(RequestValidationError, _wrong_path)
    app.add_exception_handler(Exception, _failed)
    return app
