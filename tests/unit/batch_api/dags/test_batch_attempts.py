# SPDX-License-Identifier: Apache-2.0
"""What follows an attempt that failed or died."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.dags.operators import LATE, LEAST_SECONDS, MOST_FAILURES
from airflow_provider_raybatch.batch_api.store.records import BatchRecord
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from tests.support.airflow_tasks import Clock
from tests.support.batch_api import DyingError, answering, created, dying, ended_of, state_of, write_progress
from tests.support.batches import failing
from tests.support.fake_ray import FakeRay
from tests.support.served_operator import ServedRun, begun, decide, operator


def test_a_failure_with_a_retry_leaves_the_batch_running(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    run = ServedRun(record)
    ray.script = failing(FailureClass.NODE_LOST, "prompt-of-ann")
    with pytest.raises(RayBatchException):
        operator().execute(run.context())
    assert state_of(store, record).status == "in_progress"
    run.try_number += 1
    ray.script = answering(store, record)

    assert operator().execute(run.context())["status"] == "completed"


@pytest.mark.parametrize(
    ("failure_class", "last"), [(FailureClass.USER_ERROR, False), (FailureClass.NODE_LOST, True)]
)
def test_a_failure_for_good_fails_batch_and_task(
    ray: FakeRay, store: BatchStore, failure_class: FailureClass, last: bool
) -> None:
    record = created(store)
    run = ServedRun(record)
    run.try_number = run.max_tries + 1 if last else 1
    ray.script = failing(failure_class, "prompt-of-ann")

    with pytest.raises(RayBatchException):
        operator().execute(run.context())

    ended = ended_of(store, record)
    assert (ended.decision, ended.counts.total, ended.errors[0].code) == ("failed", 3, "server_error")
    assert ended.errors[0].message.endswith(f"its DAG run is {record.id} of {record.dag_id}.")
    assert "prompt-of-ann" not in ended.model_dump_json()


def test_a_day_after_the_window_no_attempt_follows(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store, window=60)
    run = ServedRun(record)
    begun(store, record)
    ray.script = failing(FailureClass.NODE_LOST)
    clock.forward(120)
    with pytest.raises(RayBatchException) as first:
        operator().execute(run.context())
    assert not isinstance(first.value, RayBatchFailException)
    assert state_of(store, record).status == "finalizing"
    clock.forward(LATE)
    run.try_number += 1

    with pytest.raises(
        RayBatchFailException, match="No attempt follows, since its window ended more than a day ago"
    ):
        operator().execute(run.context())

    assert state_of(store, record).status == "expired"


def test_the_job_of_a_failed_batch_does_not_matter(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has given up on the batch, and its job ends itself."""
    record = created(store)

    def gives_up(ray: FakeRay, body: dict[str, Any]) -> Any:
        decide(store, record, "failed")
        return failing(FailureClass.CANCELLED)(ray, body)

    ray.script = gives_up

    assert operator().execute(ServedRun(record).context())["status"] == "failed"


def attempts(
    ray: FakeRay, store: BatchStore, record: BatchRecord, clock: Clock, script: Any, most: int = 20
) -> tuple[int, Exception | None]:
    """Run attempts until none follows; returns how many, and what the last one raised."""
    run, error = ServedRun(record), None
    run.max_tries = run.retries = 288
    ray.script = script
    for number in range(1, most + 1):
        run.try_number = number
        try:
            operator().execute(run.context())
        except RayBatchFailException as last:
            return number, last
        except RayBatchException as failure:
            error = failure
        clock.forward(200)
    return most, error


@pytest.mark.parametrize("failure_class", [FailureClass.ENGINE_DEAD, FailureClass.INTERNAL])
def test_a_batch_whose_jobs_only_fail_leaves_the_queue(
    ray: FakeRay, store: BatchStore, clock: Clock, failure_class: FailureClass
) -> None:
    record = created(store)

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        write_progress(store, record.id, 1)
        return failing(failure_class, "prompt-of-ann")(ray, body)

    number, error = attempts(ray, store, record, clock, script)

    assert number == MOST_FAILURES + 1  # the first one has answered a request
    assert "No attempt follows, since 5 attempts in a row answered no further request." in str(error)
    ended = ended_of(store, record)
    assert (ended.decision, ended.counts.completed) == ("failed", 1)
    assert ended.errors[0].message.startswith(
        "The batch could not be run, since 5 attempts in a row answered no further request; its DAG run"
    )


def test_a_batch_that_gets_on_is_tried_for_as_long_as_it_does(
    ray: FakeRay, store: BatchStore, clock: Clock
) -> None:
    record = created(store)
    tries = iter(range(100))

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        write_progress(store, record.id, next(tries) // 4)
        return failing(FailureClass.ENGINE_DEAD)(ray, body)

    attempts(ray, store, record, clock, script, 12)

    assert state_of(store, record).status == "in_progress"


@pytest.mark.parametrize("failure_class", [FailureClass.CLUSTER_UNREACHABLE, FailureClass.STALLED])
def test_a_batch_without_a_cluster_keeps_its_place(
    ray: FakeRay, store: BatchStore, clock: Clock, failure_class: FailureClass
) -> None:
    """As long as its jobs get no nodes, which others would not get either."""
    record = created(store)

    attempts(ray, store, record, clock, failing(failure_class), 12)

    assert state_of(store, record).status == "in_progress"


def test_failures_in_a_row_need_some_minutes(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store)
    run = ServedRun(record)
    run.max_tries = 288
    ray.script = failing(FailureClass.ENGINE_DEAD)
    for number in range(1, 8):
        run.try_number = number
        with pytest.raises(RayBatchException) as caught:
            operator().execute(run.context())
        assert not isinstance(caught.value, RayBatchFailException)
    clock.forward(LEAST_SECONDS)
    run.try_number += 1

    with pytest.raises(RayBatchFailException, match="since 8 attempts in a row"):
        operator().execute(run.context())


def test_a_clear_counts_attempts_anew(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store)
    run = ServedRun(record)
    run.max_tries = 288
    ray.script = failing(FailureClass.ENGINE_DEAD)
    for _ in range(2 * MOST_FAILURES - 2):
        with pytest.raises(RayBatchException):
            operator().execute(run.context())
        clock.forward(200)
        run.try_number += 1
        if run.try_number == MOST_FAILURES:
            run.max_tries += run.try_number

    assert state_of(store, record).status == "in_progress"


def test_a_store_that_is_away_ends_no_batch(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    run = ServedRun(record)

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        run.store.broken = True
        return failing(FailureClass.ENGINE_DEAD)(ray, body)

    ray.script = script

    with pytest.raises(RayBatchException):
        operator().execute(run.context())

    assert state_of(store, record).status == "in_progress"


@pytest.mark.parametrize("most", range(7))
def test_the_next_attempt_goes_on_wherever_one_died(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    record = created(store)
    run = ServedRun(record)
    ray.script = answering(store, record)
    with monkeypatch.context() as patched:
        dying(patched, store, most)
        try:
            operator().execute(run.context())
        except (DyingError, RayBatchException):
            assert state_of(store, record).ended is None
    run.try_number += 1

    result = operator().execute(run.context())

    assert (result["status"], result["completed"], result["failed"]) == ("completed", 2, 1)
    assert state_of(store, record).status == "completed"
