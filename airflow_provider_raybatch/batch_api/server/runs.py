# SPDX-License-Identifier: Apache-2.0
"""DAG runs of batches, by Airflow's public API in this process with the caller's own login.

So Airflow itself checks what the caller may do, and its audit log names the caller. Calls are made in the
event loop of the API server and waited for in a thread of the Batch API, so that neither blocks the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime
from typing import Any, TypeVar

import httpx
from jwt import InvalidTokenError

from airflow_provider_raybatch.batch_api.server.access import FRESH, may_run, user_of
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError, come_back
from airflow_provider_raybatch.batch_api.store.store import KnownDocuments
from airflow_provider_raybatch.plugins.airflow_api import airflow_client, api_path

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SECONDS = 20.0
"""An answer of Airflow takes some 50 ms; a database that is locked takes seconds."""
_TAKING_RUNS = KnownDocuments(1_000)
"""Until when DAGs need no look whether they take runs, by their ids: it costs a fifth of a create."""
_OVER = frozenset({"success", "failed"})


class RunRefusedError(OpenAiError):
    """Airflow does not make the DAG run, and won't until someone changes something."""


class AirflowRuns:
    """DAG runs, as one caller may see and make them. Called in threads.

    :param token: the caller's.
    :param loop: of the API server.
    """

    def __init__(self, token: str, loop: asyncio.AbstractEventLoop) -> None:
        self._token = token
        self._loop = loop

    def check(self, dag_id: str, model: str) -> None:
        """Make sure that a run can be made, before anything of its batch is written.

        :param model: named in the refusal.
        :raises RunRefusedError: it can't.
        :raises OpenAiError: Airflow does not answer.
        """
        try:
            user = self._wait(user_of(self._token))
        except InvalidTokenError:
            raise _ended_token() from None
        if not may_run(user, dag_id):
            raise _forbidden(model)
        if (_TAKING_RUNS.get(dag_id) or 0.0) > time.monotonic():
            return
        answer = self._ask("GET", "dags", dag_id)
        if answer.status_code == 403:
            return  # who may trigger a DAG need not be able to read it
        self._accepted(answer, dag_id, model)
        dag = answer.json()
        for field, what in (
            ("is_paused", "is paused"),
            ("has_import_errors", "has import errors"),
            ("is_stale", "is no longer in its file"),
        ):
            if dag.get(field):
                raise _unavailable(dag_id, model, what)
        _TAKING_RUNS.keep(dag_id, time.monotonic() + FRESH)

    def trigger(self, dag_id: str, run_id: str, run_after: datetime, model: str) -> None:
        """Make the run, unless it is there.

        :raises RunRefusedError: Airflow refuses.
        :raises OpenAiError: Airflow does not answer, so the run may be there or not.
        """
        body = {
            "dag_run_id": run_id,
            "logical_date": None,  # so that any number of runs may have it
            "run_after": run_after.isoformat(),
            "conf": {"batch_id": run_id},
        }
        answer = self._ask("POST", "dags", dag_id, "dagRuns", body=body)
        if answer.status_code != 409:  # made by an earlier call whose answer was lost
            self._accepted(answer, dag_id, model)

    def is_over(self, dag_id: str, run_id: str) -> bool | None:
        """Whether the run has ended or was deleted; ``None`` where Airflow does not say."""
        try:
            answer = self._ask("GET", "dags", dag_id, "dagRuns", run_id)
        except OpenAiError:
            return None
        if answer.status_code == 404:
            return True
        return answer.json().get("state") in _OVER if answer.status_code == 200 else None

    def _accepted(self, answer: httpx.Response, dag_id: str, model: str) -> None:
        status = answer.status_code
        if status in {200, 201}:
            return
        if status == 401:
            raise _ended_token()
        if status == 403:
            raise _forbidden(model)
        if status >= 500 or status == 429:
            _log.warning("Airflow answered %s about DAG %s.", status, dag_id)
            raise _silent()
        raise _unavailable(dag_id, model, "is not there" if status == 404 else "takes no runs")

    def _ask(self, method: str, *path: str, body: Any = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with airflow_client({"authorization": f"Bearer {self._token}"}) as client:
                return await client.request(method, api_path(*path), json=body)

        return self._wait(ask())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        """What a call in the event loop returns.

        :raises OpenAiError: Airflow does not answer in time.
        """
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(_SECONDS)
        except (FutureTimeoutError, httpx.HTTPError) as error:
            future.cancel()
            _log.warning("Airflow's API did not answer the Batch API: %s.", type(error).__name__)
            raise _silent() from None


def _silent() -> OpenAiError:
    return come_back(503, "Airflow does not answer just now; try again.", 2)


def _ended_token() -> RunRefusedError:
    return RunRefusedError(401, "The token has ended; get a new one.", code="invalid_api_key")


def _forbidden(model: str) -> RunRefusedError:
    return RunRefusedError(
        403, f"model: Airflow does not let you run batches of {model!r}; ask its admin.", param="model"
    )


def _unavailable(dag_id: str, model: str, what: str) -> RunRefusedError:
    _log.warning("Batches of model %s can't be run: DAG %s %s.", model, dag_id, what)
    return RunRefusedError(
        503,
        f"Model {model!r} can't be used just now: its DAG {dag_id!r} {what} in Airflow; try again later, or "
        "ask the admin.",
        param="model",
        code="model_unavailable",
    )
