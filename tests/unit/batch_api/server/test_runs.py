# SPDX-License-Identifier: Apache-2.0
"""DAG runs of batches, made by Airflow's own API server in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server import runs as module
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.runs import AirflowRuns, RunRefusedError
from airflow_provider_raybatch.batch_api.server.upkeep import run_after
from airflow_provider_raybatch.batch_api.store.ids import new_batch_id
from tests.support.airflow_server import Server, token

PAST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, as an API server has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def ann(server: Server, loop: asyncio.AbstractEventLoop) -> AirflowRuns:
    return AirflowRuns(token("ann"), loop)


def set_dag(**fields: Any) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == "other").values(**fields))


def test_a_run_has_the_name_of_its_batch(server: Server, ann: AirflowRuns) -> None:
    batch_id = new_batch_id()
    ann.check("nightly", "small")
    ann.trigger("nightly", batch_id, PAST, "small")
    run = server.get(f"/api/v2/dags/nightly/dagRuns/{batch_id}").json()
    assert run["conf"] == {"batch_id": batch_id}
    assert run["run_after"] == "2026-01-02T03:04:05Z"
    assert (run["state"], run["logical_date"], run["triggering_user_name"]) == ("queued", None, "ann")


def test_a_run_that_is_there_is_not_made_again(ann: AirflowRuns, server: Server) -> None:
    batch_id = new_batch_id()
    for _ in range(3):
        ann.trigger("nightly", batch_id, PAST, "small")
    found = server.get("/api/v2/dags/nightly/dagRuns", limit="100").json()["dag_runs"]
    assert [run["dag_run_id"] for run in found].count(batch_id) == 1


def test_airflow_starts_waiting_runs_by_size_and_age(ann: AirflowRuns) -> None:
    from airflow.models import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:  # it looks at the first twenty
        session.execute(update(DagRun).where(DagRun.state == "queued").values(state="failed"))
    now, batches = time.time(), [new_batch_id() for _ in range(5)]
    large, old, middle, small, young = batches
    asked = {
        large: (60, 10**6),
        old: (4 * 3600, 10**6),
        middle: (50, 30_000),
        small: (40, 10),
        young: (5, 10),
    }
    for batch_id, (age, count) in asked.items():
        ann.trigger("other", batch_id, run_after(now - age, count), "small")
    with create_session() as session:
        waiting = [run.run_id for run in DagRun.get_queued_dag_runs_to_set_running(session)]
    assert [one for one in waiting if one in batches] == [old, small, young, middle, large]


def test_a_run_is_over_when_it_has_ended_or_is_gone(ann: AirflowRuns) -> None:
    from airflow.models import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    batch_id = new_batch_id()
    assert ann.is_over("nightly", batch_id) is True
    ann.trigger("nightly", batch_id, PAST, "small")
    found = []
    for state in ("queued", "running", "success", "failed"):
        with create_session() as session:
            session.execute(update(DagRun).where(DagRun.run_id == batch_id).values(state=state))
        found.append(ann.is_over("nightly", batch_id))
    assert found == [False, False, True, True]


def test_who_may_not_make_runs_is_refused(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    for user in ("viewer", "guest"):
        runs = AirflowRuns(token(user), loop)
        with pytest.raises(RunRefusedError, match="does not let you run batches of 'small'") as before:
            runs.check("nightly", "small")
        with pytest.raises(RunRefusedError, match="does not let you run batches of 'small'") as after:
            runs.trigger("nightly", new_batch_id(), PAST, "small")
        assert (before.value.status, after.value.status) == (403, 403)


def test_who_may_not_read_runs_is_told_nothing(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    assert AirflowRuns(token("guest"), loop).is_over("nightly", new_batch_id()) is None


@pytest.mark.parametrize("field", ["is_paused", "has_import_errors", "is_stale"])
def test_a_dag_that_takes_no_runs_is_refused(ann: AirflowRuns, field: str) -> None:
    set_dag(**{field: True})
    try:
        with pytest.raises(
            RunRefusedError, match="Model 'small' can't be used just now: its DAG 'other'"
        ) as refused:
            ann.check("other", "small")
    finally:
        set_dag(**{field: False})
    assert (refused.value.status, refused.value.code) == (503, "model_unavailable")
    ann.check("other", "small")


def test_a_dag_that_took_runs_is_asked_about_every_two_seconds(
    ann: AirflowRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    ann.check("other", "small")
    set_dag(is_paused=True)
    try:
        now += 1.9
        ann.check("other", "small")
        now += 0.1
        for _ in range(2):
            with pytest.raises(RunRefusedError, match="its DAG 'other' is paused"):
                ann.check("other", "small")
    finally:
        set_dag(is_paused=False)
    ann.check("other", "small")


def test_a_dag_that_is_not_there_is_refused(ann: AirflowRuns) -> None:
    with pytest.raises(RunRefusedError, match="its DAG 'none' is not there in Airflow"):
        ann.check("none", "small")
    with pytest.raises(RunRefusedError, match="its DAG 'none' is not there in Airflow"):
        ann.trigger("none", new_batch_id(), PAST, "small")


def test_a_token_that_has_ended_is_refused(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    runs = AirflowRuns("not.a.token", loop)
    with pytest.raises(RunRefusedError, match="The token has ended; get a new one") as refused:
        runs.check("nightly", "small")
    assert refused.value.status == 401
    with pytest.raises(RunRefusedError):
        runs.trigger("nightly", new_batch_id(), PAST, "small")
    assert runs.is_over("nightly", new_batch_id()) is None


def test_an_airflow_that_does_not_answer_is_not_waited_for(
    ann: AirflowRuns, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.05)
    free_again = threading.Event()
    loop.call_soon_threadsafe(free_again.wait)
    try:
        with pytest.raises(OpenAiError, match="Airflow does not answer just now") as refused:
            ann.trigger("nightly", new_batch_id(), PAST, "small")
        assert ann.is_over("nightly", new_batch_id()) is None
    finally:
        free_again.set()
    assert refused.value.status == 503
    assert not isinstance(refused.value, RunRefusedError)
