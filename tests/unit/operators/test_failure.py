# SPDX-License-Identifier: Apache-2.0
"""Each failure has a class, and the class decides about a retry."""

from __future__ import annotations

import traceback
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayConnectionError,
    for_airflow,
)
from airflow_provider_raybatch.hooks.ray import RayHook
from tests.support.airflow_tasks import Run, connection
from tests.support.batches import batch, failing
from tests.support.fake_ray import FakeRay


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_class_decides_about_a_retry(ray: FakeRay, run: Run, failure_class: FailureClass) -> None:
    ray.script = failing(failure_class, "The column 'x' is missing.")
    with pytest.raises(RayBatchException, match="The column 'x' is missing") as caught:
        batch().execute(run.context())
    assert caught.value.failure_class is failure_class
    assert isinstance(caught.value, AirflowFailException) is not failure_class.retryable


@pytest.mark.parametrize(
    ("attempt", "failure_class", "follows"),
    [
        (1, FailureClass.OUT_OF_MEMORY, "it went wrong. Airflow begins attempt 2 of 3 within 90 s."),
        (
            3,
            FailureClass.OUT_OF_MEMORY,
            "it went wrong. No attempt follows; raise retries, or clear it.",
        ),
        (1, FailureClass.USER_ERROR, "it went wrong."),
    ],
)
def test_a_failure_says_which_attempt_follows(
    ray: FakeRay, run: Run, attempt: int, failure_class: FailureClass, follows: str
) -> None:
    ray.script = failing(failure_class, "it went wrong.")
    run.try_number = attempt
    with pytest.raises(RayBatchException) as caught:
        batch(retries=2, retry_delay=timedelta(seconds=90)).execute(run.context())
    assert str(caught.value).endswith(f" failed: {follows}")


def test_one_root_catches_what_hook_and_operator_raise(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.token = "right"
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, password="wrong-token"))
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", '{"conn_type": "ray"}')
    for call in (
        lambda: RayHook().version(),
        lambda: RayHook("nowhere").client(),
        lambda: batch().execute(run.context()),
        lambda: batch(poll_interval=0),
    ):
        with pytest.raises(RaybatchError) as caught:
            call()
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert "wrong-token" not in str(caught.value)


def test_what_is_for_airflow_already_stays_as_it_is() -> None:
    """A final deadline has a class that is otherwise retried."""
    for error in (RayBatchFailException("x", FailureClass.TIMEOUT), RayConnectionError("x")):
        with pytest.raises(RayBatchException) as caught, for_airflow():
            raise error
        assert caught.value is error


@pytest.mark.parametrize("failure_class", FailureClass)
def test_a_traceback_tells_the_sentence_once(failure_class: FailureClass) -> None:
    """Of a failure whose sentence has its cause, the task's log shows no second and third traceback."""
    error = RaybatchError("the sentence", failure_class)
    error.__cause__ = OSError("All connection attempts failed")
    with pytest.raises(RayBatchException) as caught, for_airflow():
        raise error
    shown = "".join(traceback.format_exception(caught.value))
    unexpected = failure_class is FailureClass.INTERNAL
    assert ("All connection attempts failed" in shown) == unexpected
    assert shown.count("the sentence") == (2 if unexpected else 1)
    assert shown.endswith("the sentence\n")
