# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError
from ray.exceptions import OutOfDiskError, RayTaskError

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.job.failures.diagnosis import (
    diagnose,
    reason_of,
    start_failure,
)
from tests.support.approved import AssertSentences


class WrappedError(Exception):
    """Stands for the exception in which Ray wraps a task's exception."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


def test_an_error_of_ours_speaks_for_itself_however_deep() -> None:
    inner = PreflightError("source: nothing is there.")
    outer = RuntimeError("the job failed")
    outer.__cause__ = WrappedError("ray::task() (pid=1)\nTraceback ...", inner)
    assert diagnose(outer) == (FailureClass.USER_ERROR, "source: nothing is there.")


def as_ray_raises_it(cause: Exception) -> BaseException:
    """Return what `ray.get` raises for a failed task: an instance of Ray's class and of the cause's."""
    task = "\x1b[36mray::check_model()\x1b[39m (pid=1, ip=10.0.0.1)"
    traceback = f"{task}\n  File x, line 1\n{type(cause).__name__}: {cause}"
    raised = RayTaskError("check_model", traceback, cause).as_instanceof_cause()
    assert isinstance(raised, type(cause))
    return raised


def test_the_sentence_of_a_failed_task_arrives() -> None:
    raised = as_ray_raises_it(PreflightError("sampling: 'x' is wrong."))
    assert diagnose(raised) == (FailureClass.USER_ERROR, "sampling: 'x' is wrong.")
    other = as_ray_raises_it(PreflightError("cluster_wait: over.", FailureClass.STALLED))
    assert diagnose(other) == (FailureClass.STALLED, "cluster_wait: over.")
    wrapped = RuntimeError("a UDF failed")
    wrapped.__cause__ = raised
    assert diagnose(wrapped) == (FailureClass.USER_ERROR, "sampling: 'x' is wrong.")


def test_a_failed_task_of_others_is_one_plain_sentence() -> None:
    found, sentence = diagnose(as_ray_raises_it(KeyError("nodes")))
    assert (found, sentence) == (FailureClass.INTERNAL, "there is no 'nodes'")


def test_other_errors_are_classified_by_their_text(assert_sentences: AssertSentences) -> None:
    def said(text: str) -> str:
        name, _, message = text.partition(": ")
        found, sentence = diagnose(type(name, (Exception,), {})(message))
        assert diagnose(WrappedError(f"ray::Replica()\n  File x, line 1\n{text}")) == (found, sentence)
        assert not sentence.startswith(name)
        return f"[{found.value}] {sentence}"

    assert_sentences(said)


def test_an_error_without_a_text_does_not_hide_the_one_with_it() -> None:
    """Ray's stream of a task that failed ends with an empty error, while its own is raised."""
    error = ValueError("the server answered 400: max_tokens is too large")
    error.__context__ = type("ObjectRefStreamEndOfStreamError", (Exception,), {})()
    for one in (error, as_ray_raises_it(error)):
        assert diagnose(one)[1] == "the server answered 400: max_tokens is too large"
    assert diagnose(error.__context__)[1] == "object ref stream end of stream error"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_full_disk_of_rays_store_is_told_in_rays_words(is_wrapped: bool) -> None:
    error = OutOfDiskError("put failed")
    found, sentence = diagnose(as_ray_raises_it(error) if is_wrapped else error)
    assert found is FailureClass.STORAGE
    assert "the local disk's utilization is over capacity" in sentence
    assert "make room on the disks of the cluster's nodes" in sentence


def test_failed_start_of_an_actor_keeps_our_error() -> None:
    # Ray hands over the text of an actor's failed start, and no exception.
    text = (
        "The actor died because of an error raised in its creation task, ray::MapWorker.__init__() (pid=1)\n"
        '  File "/x/replica.py", line 9, in __init__\n'
        "airflow_provider_raybatch.contract.failures.SpecError: engine_args: there is no such field."
    )
    assert diagnose(type("ActorDiedError", (Exception,), {})(text)) == (
        FailureClass.USER_ERROR,
        "engine_args: there is no such field.",
    )
    own_class = text.replace("contract.failures.SpecError", "job.storage_errors.StorageError")
    found, _ = diagnose(type("ActorDiedError", (Exception,), {})(own_class))
    assert found is FailureClass.STORAGE


def test_a_signal_is_a_stop() -> None:
    assert diagnose(KeyboardInterrupt())[0] is FailureClass.CANCELLED


def test_long_texts_are_cut_and_cycles_end() -> None:
    error = RuntimeError("x" * 5000)
    error.__cause__ = ValueError("y")
    error.__cause__.__cause__ = error
    _, sentence = diagnose(error)
    assert len(sentence) <= 610


@pytest.mark.parametrize(
    ("cause", "failure"),
    [
        ("ValueError: No available memory for the cache blocks.", FailureClass.OUT_OF_MEMORY),
        ("OSError: [Errno 28] No space left on device", FailureClass.STORAGE),
        ("KeyError: 'something odd'", FailureClass.USER_ERROR),
    ],
)
def test_an_engine_that_did_not_start(cause: str, failure: FailureClass) -> None:
    error = start_failure(cause)
    assert isinstance(error, RaybatchError)
    assert error.failure_class is failure
    assert str(error).startswith("engine_args: the engine did not start: ")


def test_a_refused_argument_is_named() -> None:
    class Config(BaseModel, extra="forbid"):
        backend: str = "auto"

    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"bakend": "xgrammar"})
    found = start_failure(f"ValidationError: {reason_of(caught.value)}")
    assert str(found) == (
        "engine_args: the engine did not start: validation error for Config: bakend: Extra inputs are not "
        "permitted; check engine_args and sampling."
    )
    assert found.failure_class is FailureClass.USER_ERROR
    assert reason_of(ValueError("as it is")) == "as it is"
