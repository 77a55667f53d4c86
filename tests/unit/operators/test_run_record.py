# SPDX-License-Identifier: Apache-2.0
"""A retry continues the recorded run, a clear begins a new one; without the store, both fail."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]

from airflow_provider_raybatch.contract.submission import run_number
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.operators import run_record
from airflow_provider_raybatch.operators.run_record import (
    KEY,
    RunRecord,
    forget_earlier,
    record_result,
    recorded_run,
)
from tests.support.airflow_tasks import Store

RESULT = {"submission_id": "raybatch-x-0"}


def current_run(store: Store, attempt: Any, namespace: str = "n") -> RunRecord:
    return run_record.current_run(store, attempt, lambda: namespace)


def attempt(try_number: int, max_tries: int) -> Any:
    return SimpleNamespace(try_number=try_number, max_tries=max_tries)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "same_run"),
    [
        # The counters of Airflow 3.3, see tests/integration/end_to_end/test_clearing.py.
        pytest.param((1, 2), (2, 2), True, id="retry"),
        pytest.param((1, 2), (3, 2), True, id="second retry"),
        pytest.param((1, 0), (2, 0), True, id="running task cleared, executor reported a failure"),
        pytest.param((1, 2), (2, 3), False, id="clear"),
        pytest.param((1, 0), (2, 1), False, id="clear of a task without retries"),
        pytest.param((3, 2), (4, 5), False, id="clear after the last retry"),
        pytest.param((1, 2), (2, 1), False, id="clear with retries lowered to none"),
        # A retry of a task whose retries were lowered by one has the same counters.
        pytest.param((1, 2), (2, 2), True, id="clear with retries lowered by one"),
    ],
)
def test_airflows_counters_distinguish_retry_and_clear(
    first: tuple[int, int], second: tuple[int, int], same_run: bool, finished: bool
) -> None:
    store = Store()
    run = current_run(store, attempt(*first))
    if finished:
        record_result(store, run.token, attempt(*first), "f", RESULT)
    again = current_run(store, attempt(*second))
    assert (again.token == run.token) is same_run
    assert again.result == (RESULT if finished and same_run else None)


def test_a_clear_has_a_higher_number_than_all_runs_before_it() -> None:
    store = Store()
    tokens = [current_run(store, attempt(number, most)).token for number, most in ((1, 2), (2, 2), (5, 4))]
    assert [run_number(token) for token in tokens] == [1, 1, 5]
    store.values.clear()  # as Airflow 3.4 does when a task is cleared
    assert run_number(current_run(store, attempt(6, 7)).token) == 6


def test_clear_after_one_that_looked_like_a_retry_is_seen() -> None:
    store = Store()
    run = current_run(store, attempt(1, 2))
    record_result(store, run.token, attempt(1, 2), "f", RESULT)
    assert current_run(store, attempt(2, 2)).token == run.token
    assert current_run(store, attempt(3, 3)).token != run.token


def test_a_dag_run_made_again_has_a_run_of_its_own() -> None:
    store = Store()  # a store that outlived the first DAG run
    run = current_run(store, attempt(1, 2))
    record_result(store, run.token, attempt(2, 2), "f", RESULT)
    assert current_run(store, attempt(1, 2)).token != run.token


def test_earlier_runs_are_known_until_their_jobs_have_ended() -> None:
    store = Store()
    tokens = [current_run(store, attempt(n, n)).token for n in (1, 2, 3)]
    record = current_run(store, attempt(4, 3))
    assert (record.token, record.earlier) == (tokens[2], (tokens[0], tokens[1]))
    forget_earlier(store, record.token)
    assert current_run(store, attempt(5, 3)).earlier == ()


@pytest.mark.parametrize(("try_number", "earlier"), [(1, ()), (2, None)])
def test_a_lost_record_makes_a_new_one(try_number: int, earlier: tuple[str, ...] | None) -> None:
    assert recorded_run(Store()) is None
    assert current_run(Store(), attempt(try_number, 2)).earlier == earlier


def test_a_task_keeps_its_namespace() -> None:
    store = Store()
    namespaces = [
        current_run(store, attempt(number, max_tries), name).namespace
        for number, max_tries, name in ((1, 2, "a"), (2, 2, "b"), (3, 4, "c"))
    ]
    assert namespaces == ["a"] * 3


def test_attempt_overtaken_by_a_clear_records_nothing() -> None:
    store = Store()
    old = current_run(store, attempt(1, 2))
    new = current_run(store, attempt(2, 3))
    record_result(store, old.token, attempt(1, 2), "f", RESULT)
    forget_earlier(store, old.token)
    assert recorded_run(store) == new


@pytest.mark.parametrize("ask", [lambda store: current_run(store, attempt(1, 0)), recorded_run])
def test_a_store_that_is_away_is_worth_a_retry(ask: Any) -> None:
    store = Store()
    store.broken = True
    with pytest.raises(RayBatchException, match=r"task_state_store: .*API server is away") as caught:
        ask(store)
    assert not isinstance(caught.value, RayBatchFailException)


def test_a_store_that_forgets_at_once_is_not_trusted() -> None:
    class Forgetful(Store):
        def set(self, key: str, value: Any, *, retention: Any = None) -> None:
            pass

    with pytest.raises(RayBatchException, match="doesn't give back what was written"):
        current_run(Forgetful(), attempt(1, 0))


RECORD = {"token": "t", "max_tries": 2, "try_number": 1, "namespace": "n", "key": "ab"}
OTHERS = [{**RECORD, "key": key} for key in (None, 7, "", "zz", "abc", "sealed:\u00e4")]


@pytest.mark.parametrize(
    "value",
    ["text", 3, [], {}, {"token": "t"}, {**RECORD, "token": 1}, {**RECORD, "try_number": "x"}, *OTHERS],
)
def test_a_value_that_is_not_a_record_is_named(value: Any) -> None:
    """Users write to the task state store, too; a new run would leave the old one's job."""
    store = Store()
    store.set(KEY, value)
    for ask in (recorded_run, lambda store: current_run(store, attempt(1, 2))):
        with pytest.raises(RayBatchFailException, match="the value of 'raybatch_run' is not the record"):
            ask(store)
    assert store.get(KEY) == value


class Swept(Store):
    """A store that Airflow sweeps after each write: only values without an expiry stay."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        super().set(key, value)
        self.expires = retention != NEVER_EXPIRE

    def sweep(self) -> None:
        if self.expires:
            self.values.clear()


def test_a_retry_that_comes_late_finds_its_run() -> None:
    store = Swept()
    tokens = set()
    for number in (1, 2, 3):
        run = current_run(store, attempt(number, 5))
        tokens.add(run.token)
        forget_earlier(store, run.token)
        if number == 2:
            record_result(store, run.token, attempt(number, 5), "f", {"rows": 1})
        store.sweep()
    assert len(tokens) == 1
    assert run.result == {"rows": 1}
