# SPDX-License-Identifier: Apache-2.0
"""The page of a user's own batches: states, counts and cost. A login is all that it asks for.

FastAPI resolves the annotations of the route in this module, so all that they name is imported here.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from airflow_provider_raybatch.batch_api.store.ids import TASK_ID
from airflow_provider_raybatch.batch_api.store.records import BatchState
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import batch_store, usable
from airflow_provider_raybatch.links.report import PREFIX, report_path
from airflow_provider_raybatch.plugins.app import frame_of, readers
from airflow_provider_raybatch.plugins.pages import Frame
from airflow_provider_raybatch.plugins.reading import NotShownError
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.page import Shown
from airflow_provider_raybatch.report.rendering import render

_TEMPLATE = Path(__file__).parent / "templates/batches.jinja"
_MOST = 100
"""Batches on the page, the newest."""

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/batches")
async def own_batches(request: Request, user: GetUserDep) -> HTMLResponse:
    """The reader's own batches, newest first."""
    states, total = await readers.run(_newest, str(user.get_id()))
    frame = frame_of(request)
    shown = {"title": "Your batches", "user": user.get_name(), "total": total, "costs": _costs(states)}
    return HTMLResponse(render(_TEMPLATE, batches=[_batch(one, frame) for one in states], **shown))


def _newest(owner: str) -> tuple[list[BatchState], int]:
    """The newest batches of a user, and how many there are.

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

    return usable(state, ids[:_MOST]), len(ids)


def _batch(state: BatchState, frame: Frame) -> Shown:
    record, ended = state.record, state.ended
    decided = ended or state.outcome
    errors = decided.errors if decided is not None else []
    files = {} if ended is None else {"dataset": ended.output_file_id, "failed": ended.error_file_id}
    names = {"dataset": "output", "failed": "errors"}  # parts of the dataset that has a page
    return {
        "record": record,
        "counts": state.counts,
        "ended": ended,
        "created": _time(record.created_at),
        "expires": _time(record.expires_at),
        "run": frame.href(f"/dags/{quote(record.dag_id, safe='')}/runs/{quote(record.id, safe='')}"),
        "state": "queued" if state.status == "validating" else state.status.replace("_", " "),
        "error": errors[0].message if errors else None,
        "files": [
            (names[page], frame.href(PREFIX + report_path(record.dag_id, record.id, TASK_ID, page=page)))
            for page, file_id in files.items()
            if file_id is not None
        ],
    }


def _costs(states: Sequence[BatchState]) -> str:
    """What is known of the cost, by currency."""
    sums: dict[str | None, float] = {}
    for state in states:
        if state.ended is not None and state.ended.cost:
            sums[state.ended.currency] = sums.get(state.ended.currency, 0.0) + state.ended.cost
    return " and ".join(words.money(cost, currency) for currency, cost in sums.items())


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")
