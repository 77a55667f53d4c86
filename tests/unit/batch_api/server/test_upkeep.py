# SPDX-License-Identifier: Apache-2.0
"""What a look at a batch completes, after servers, tasks and jobs have died."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.runs import RunRefusedError
from airflow_provider_raybatch.batch_api.server.upkeep import (
    LONGEST_WAIT,
    Upkeep,
    cancelled,
    run_after,
    settled,
)
from airflow_provider_raybatch.batch_api.store.ending import decided
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchState, Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore, new_nonce
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import RequestCounts
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.batch_api import DAY, batch_record, published, write_progress
from tests.support.batch_runs import RunsOfTests

SECRET = b"a secret of the tests, long enough"


class Served:
    """A batch, the store it lies in, and servers that look at it."""

    def __init__(self, root: LocalFolder) -> None:
        self.store = BatchStore(root, SECRET)
        self.runs = RunsOfTests()
        self.upkeep = Upkeep(interval=0)
        self.record = self.store.add_batch(batch_record())

    @property
    def state(self) -> BatchState:
        state = self.store.state(self.record.id)
        assert state is not None
        return state

    def look(self, upkeep: Upkeep | None = None) -> BatchState:
        return (upkeep or self.upkeep).looked_after(self.store, self.state, self.runs)

    def cancel(self) -> BatchState:
        return cancelled(self.store, self.state, self.runs, self.upkeep)

    def start(self, total: int = 3) -> None:
        self.store.start(self.record.id, Started(at=time.time(), total=total, nonce=new_nonce()))

    def progress(self, completed: int, age: float = 0.0) -> None:
        write_progress(self.store, self.record.id, completed, time.time() - age)

    def over(self) -> None:
        """End its DAG run."""
        self.runs.over.add(self.record.id)

    def error(self) -> str:
        ended = self.state.ended
        assert ended is not None
        return ended.errors[0].code


@pytest.fixture
def served(disk: LocalFolder) -> Served:
    return Served(disk)


@pytest.fixture
def started(served: Served) -> Served:
    """With a run and a task that has begun."""
    served.look()
    served.start()
    return served


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


def test_a_batch_without_a_run_gets_one(served: Served) -> None:
    assert served.look().triggered
    assert served.state.triggered
    assert served.runs.runs.keys() == {served.record.id}


@pytest.mark.parametrize("kind", [OpenAiError, RunRefusedError])
def test_a_refused_run_is_tried_again_by_a_later_look(served: Served, kind: Callable[..., Any]) -> None:
    served.runs.refusal = kind(503, "Airflow does not answer.")
    assert (served.look().status, served.look().triggered) == ("validating", False)
    served.runs.refusal = None
    assert served.look().triggered


def test_airflow_is_asked_rarely(started: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = Upkeep(interval=1000)
    for _ in range(20):
        started.look(rare)
    assert started.runs.questions == 0  # its run was made just now
    later(monkeypatch, 1001)
    for _ in range(20):
        started.look(rare)
    assert started.runs.questions == 1


def test_airflow_is_not_asked_about_a_job_that_writes(started: Served) -> None:
    started.progress(1)
    started.over()
    assert started.look().status == "in_progress"
    started.progress(1, age=61)
    assert started.look().status == "failed"


def test_a_batch_expires_before_its_task_began(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.look()
    later(monkeypatch, DAY + 1)
    state = served.look()
    assert (state.status, state.is_over) == ("expired", True)


def test_a_listing_shows_the_expiry_without_airflow(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, DAY + 1)
    assert settled(served.store, served.state).status == "expired"
    assert (served.runs.questions, served.runs.triggers) == (0, 0)


def test_a_started_batch_is_expired_by_its_job(started: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, DAY + 1)
    assert started.look().status == "in_progress"


def test_a_task_that_begins_while_its_batch_expires_decides(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = served.state
    served.start()
    later(monkeypatch, DAY + 1)
    state = settled(served.store, stale)
    assert (state.status, state.is_over) == ("finalizing", False)


def test_a_run_that_is_over_ends_its_batch_from_the_manifest(started: Served) -> None:
    published(started.store, started.record, {"part-00000.jsonl": 2}, {"part-00000.jsonl": 1})
    started.over()
    state = started.look()
    assert state.ended is not None
    assert (state.status, state.counts.completed, state.counts.failed) == ("completed", 2, 1)
    assert started.store.file(state.ended.output_file_id or "") is not None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_run_without_a_result_fails_its_batch(started: Served, is_deleted: bool) -> None:
    if is_deleted:
        started.runs.runs.clear()
    else:
        started.over()
    assert started.look().status == "failed"
    assert started.error() == "dag_run_over"


def test_a_run_that_is_over_before_its_task_began_fails_it(served: Served) -> None:
    served.look()
    served.over()
    assert served.look().status == "failed"


def test_an_end_that_was_just_written_counts(started: Served) -> None:
    stale = started.state
    end = BatchEnd(decision="completed", decided_at=1.0, at=1.0, nonce=new_nonce())
    started.store.end(started.record.id, end)
    started.over()
    assert started.upkeep.looked_after(started.store, stale, started.runs).status == "completed"


def test_a_job_that_outlives_its_run_may_publish(started: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    decided(started.store, started.record.id, "completed")
    started.over()
    assert started.look().status == "finalizing"
    later(monkeypatch, 601)
    assert started.look().status == "failed"


def test_a_failure_after_progress_keeps_the_counts(started: Served) -> None:
    started.progress(2, age=61)
    started.over()
    state = started.look()
    assert (state.status, state.counts) == ("failed", RequestCounts(total=3, completed=2))


def test_a_decision_of_the_job_wins_over_a_failure(started: Served) -> None:
    stale = started.state
    decided(started.store, started.record.id, "completed")
    started.over()
    assert started.upkeep.looked_after(started.store, stale, started.runs).status == "finalizing"


def test_a_caller_who_may_not_read_runs_sees_what_is_written(started: Served) -> None:
    started.over()
    started.runs.silent = True
    assert started.look().status == "in_progress"


def test_a_manifest_that_cannot_be_used_fails_the_batch(started: Served) -> None:
    path = f"{layout.batch_folder(started.record.id)}/{layout.BATCH_DATASET}/{layout.NEWEST_MANIFEST}"
    started.store.root.write(path, b"{}")
    started.over()
    assert started.look().status == "failed"


def test_a_batch_that_has_not_begun_is_cancelled_at_once(served: Served) -> None:
    served.look()
    state = served.cancel()
    assert (state.status, state.is_over) == ("cancelled", True)
    assert served.cancel() == state


def test_a_batch_without_a_run_is_cancelled_and_gets_none(served: Served) -> None:
    assert served.cancel().status == "cancelled"
    assert served.look().status == "cancelled"
    assert served.runs.triggers == 0


def test_a_running_batch_is_cancelled_by_its_job(started: Served) -> None:
    assert started.cancel().status == "cancelling"
    assert started.cancel().status == "cancelling"
    published(started.store, started.record, {"part-00000.jsonl": 1})
    started.over()
    state = started.look()
    assert (state.status, state.counts.completed) == ("cancelled", 1)


@pytest.mark.parametrize("decision", ["completed", "expired", "failed"])
def test_a_batch_that_is_decided_is_not_cancelled(started: Served, decision: Any) -> None:
    decided(started.store, started.record.id, decision)
    with pytest.raises(OpenAiError, match="so it can't be cancelled") as refused:
        started.cancel()
    assert refused.value.status == 400
    assert started.state.outcome is not None
    assert started.state.outcome.decision == decision


def test_a_cancellation_that_loses_the_race_is_refused(started: Served) -> None:
    stale = started.state
    decided(started.store, started.record.id, "completed")
    with pytest.raises(OpenAiError, match="is finalizing"):
        cancelled(started.store, stale, started.runs, started.upkeep)


def test_runs_are_never_to_start_in_the_future() -> None:
    now = 1_790_000_000.0
    for lines in (0, 1, 50_000, 2_159_999, 2_160_000, 10**9):
        assert run_after(now, lines).timestamp() <= now


def test_no_batch_is_passed_by_much_younger_ones() -> None:
    """Neither the largest by the smallest, as long as waits only grow with the size."""
    now = 1_790_000_000.0
    waits = [run_after(now, lines) for lines in (0, 1, 1_000, 100_000, 10**7, 10**9)]
    assert waits == sorted(waits)
    assert waits[-1] < run_after(now + LONGEST_WAIT + 0.001, 0)
