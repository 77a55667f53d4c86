# SPDX-License-Identifier: Apache-2.0
"""A retry keeps the run token, a clear renews it, and without the store nothing goes on."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.operators.run_token import mark_succeeded, recorded_token, run_token

from .conftest import Store


def test_a_retry_keeps_it() -> None:
    store = Store()
    token = run_token(store, 2)
    assert [run_token(store, 2), run_token(store, 2), recorded_token(store)] == [token] * 3


def test_a_clear_renews_it() -> None:
    store = Store()
    first = run_token(store, 2)
    second = run_token(store, 3)  # Airflow raises max_tries when a task is cleared
    assert second != first
    assert run_token(store, 3) == second


def test_a_clear_that_leaves_max_tries_alone_renews_a_succeeded_one() -> None:
    store = Store()
    token = run_token(store, 2)
    mark_succeeded(store, token, 2)
    assert run_token(store, 2) != token


def test_a_lost_record_makes_a_new_one() -> None:
    assert recorded_token(Store()) is None
    assert run_token(Store(), 0) != run_token(Store(), 0)


@pytest.mark.parametrize("ask", [lambda store: run_token(store, 0), recorded_token])
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
        run_token(Forgetful(), 0)
