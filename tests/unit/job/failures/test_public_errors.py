# SPDX-License-Identifier: Apache-2.0
"""What leaves a process of a failure where rows may not be quoted."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from ray.exceptions import RayTaskError

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.job.failures.diagnosis import diagnose, said
from airflow_provider_raybatch.job.failures.public_reasons import (
    guarded,
    guarded_task,
    public_error,
    traceback_of,
)
from tests.support.row_canaries import CANARY, canary

HIDDEN = "whose text is left out with report_samples=0, as it may quote rows"


def raised(error: Exception) -> Exception:
    """Return the error as it comes out of a guard."""
    with pytest.raises(Exception) as caught, guarded(shows_rows=False):
        raise error
    return caught.value


def test_own_errors_say_their_public_sentence() -> None:
    error = PreflightError(f"id_column: {CANARY}.", public="id_column: twice.")
    public = raised(error)
    assert (type(public), str(public)) == (PreflightError, "id_column: twice.")
    assert diagnose(error) == (FailureClass.USER_ERROR, f"id_column: {CANARY}.")
    assert diagnose(error, shows_rows=False) == (FailureClass.USER_ERROR, "id_column: twice.")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.public) == (str(error), "id_column: twice.")
    assert str(raised(RaybatchError("max_errors: 3.", FailureClass.TOO_MANY_ERRORS))) == "max_errors: 3."


def test_other_errors_say_their_class_and_place() -> None:
    def convert() -> None:
        pa.array([canary("value")]).cast(pa.int64())

    with pytest.raises(RaybatchError) as caught, guarded(shows_rows=False):
        convert()
    assert str(caught.value) == f"ArrowInvalid, {HIDDEN}"
    assert caught.value.failure_class is FailureClass.INTERNAL
    told = traceback_of(caught.value, shows_rows=False)
    assert "in convert" in told
    assert CANARY not in told


def test_errors_that_are_known_keep_class_and_remedy() -> None:
    error = RuntimeError(f"CUDA out of memory. {CANARY}")
    failure_class, sentence = diagnose(error, shows_rows=False)
    assert failure_class is FailureClass.OUT_OF_MEMORY
    assert sentence.startswith(f"'CUDA out of memory' in RuntimeError, {HIDDEN}; lower ")
    assert CANARY not in sentence


def test_an_error_that_caused_a_public_one_is_not_told() -> None:
    public = public_error(ValueError(CANARY))
    public.__cause__ = ValueError(CANARY)
    assert CANARY not in traceback_of(public, shows_rows=False)
    assert CANARY in traceback_of(public, shows_rows=True)


def test_an_actors_error_as_text_is_not_told() -> None:
    text = f"ray::Replica()\nairflow_provider_raybatch.storage.errors.StorageError: source: {CANARY}"
    error = RayTaskError("f", text, ValueError(CANARY))
    failure_class, sentence = diagnose(error, shows_rows=False)
    assert failure_class is FailureClass.STORAGE
    assert CANARY not in sentence


def test_tasks_are_guarded_where_they_run() -> None:
    def fail(value: str) -> str:
        raise ValueError(value)

    def some(value: str) -> Iterator[str]:
        yield "first"
        raise ValueError(value)

    assert guarded_task(fail, shows_rows=True) is fail
    for function in (fail, lambda value: list(guarded_task(some, shows_rows=False)(value))):
        with pytest.raises(RaybatchError) as caught:
            guarded_task(function, shows_rows=False)(CANARY)
        assert CANARY not in str(caught.value)
    assert guarded_task(fail, shows_rows=False).__name__ == "fail"
    assert next(iter(guarded_task(some, shows_rows=False)("x"))) == "first"


def test_a_log_says_as_much_as_it_may() -> None:
    assert said(ValueError("odd"), shows_rows=True) == "odd"
    assert said(ValueError(CANARY), shows_rows=False) == f"ValueError, {HIDDEN}"
