# SPDX-License-Identifier: Apache-2.0
"""What a job sees of its batch, whatever the storage does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchOutcome,
    BatchProgress,
    Decision,
    ServedBatch,
)
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import OUTCOME, PROGRESS
from airflow_provider_raybatch.job.monitor.served_batch import BatchEndedError, BatchWatch
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder

LATER = 4e9


@pytest.fixture
def place(tmp_path: Path) -> LocalFolder:
    return LocalFolder(str(tmp_path / "batch"))


def watch_of(place: LocalFolder, expires_at: float = LATER, interval: float = 0.005) -> BatchWatch:
    return BatchWatch(ServedBatch(folder=place.uri, expires_at=expires_at), interval=interval)


def decide(place: LocalFolder, decision: Decision) -> None:
    outcome = BatchOutcome(decision=decision, at=1.0, nonce="other")
    place.create(OUTCOME, outcome.model_dump_json().encode())


def wait_until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.005)


def progress(place: LocalFolder) -> tuple[int, int, int]:
    counts = parse(BatchProgress, place.read(PROGRESS)).counts
    return counts.total, counts.completed, counts.failed


def test_cancel_is_seen_while_the_job_runs(place: LocalFolder) -> None:
    watch = watch_of(place)
    with watch.looking():
        watch.check()
        decide(place, "cancelled")
        wait_until(lambda: watch.decision)
        with pytest.raises(BatchEndedError):
            watch.check()
    assert (watch.ending, watch.asks_no_more) == ("cancelled", True)


def test_broken_progress_is_written_anew(place: LocalFolder) -> None:
    place.write(PROGRESS, b"{")
    watch = watch_of(place)
    with watch.looking():
        watch.observe(20, 3, 0)
    assert progress(place) == (20, 3, 0)


def test_first_decision_counts(place: LocalFolder) -> None:
    decide(place, "cancelled")
    watch = watch_of(place)
    watch.complete()
    assert watch.ending == "cancelled"
    assert parse(BatchOutcome, place.read(OUTCOME)).nonce == "other"


def test_completed_batch_expires_no_more(place: LocalFolder) -> None:
    watch = watch_of(place)
    watch.complete()
    late = watch_of(place, expires_at=1.0)
    with late.looking():
        assert (late.decision, late.ending) == ("completed", None)


def test_storage_without_answer_ends_no_job(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def away(*_: object) -> None:
        nonlocal looks
        looks += 1
        raise StorageError("the store is away.")

    watch = watch_of(place)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "head", away)
        patch.setattr(LocalFolder, "write", away)
        with watch.looking():
            watch.observe(3, 1, 0)
            wait_until(lambda: looks > 5)
            watch.check()
    assert sum("store is away" in record.message for record in caplog.records) == 2
    decide(place, "cancelled")
    with watch_of(place).looking() as _:
        assert watch.is_ended_by(ValueError())


def test_unreadable_outcome_is_looked_at_again(place: LocalFolder) -> None:
    place.write(OUTCOME, b"{")
    watch = watch_of(place)
    with watch.looking():
        watch.check()
        place.delete([OUTCOME])
        decide(place, "expired")
        wait_until(lambda: watch.ending)
    assert watch.ending == "expired"


@pytest.mark.parametrize(
    ("error", "publishes"),
    [
        (ValueError("engine"), True),
        (RaybatchError("limit", FailureClass.LIMIT_REACHED), True),
        (RaybatchError("stopped", FailureClass.CANCELLED), False),
        (RaybatchError("deadline", FailureClass.TIMEOUT), False),
        (RaybatchError("claimed by another", FailureClass.SUPERSEDED), False),
        (BatchEndedError("over"), True),
    ],
)
def test_failure_of_a_batch_that_is_over(error: Exception, publishes: bool, place: LocalFolder) -> None:
    decide(place, "cancelled")
    assert watch_of(place).is_ended_by(error) is publishes


def test_failure_of_an_open_batch_publishes_nothing(place: LocalFolder) -> None:
    assert not watch_of(place).is_ended_by(ValueError("engine"))


def test_progress_never_goes_back(place: LocalFolder) -> None:
    seen, readings = [], [(10, 4, 1), (10, 3, 0), (10, 8, 1), (10, 9, 5)]
    for number in range(len(readings)):
        watch = watch_of(place)
        for counts in readings[: number + 1]:
            watch.observe(*counts)
        with watch.looking():
            pass
        seen.append(progress(place))
    assert seen == [(10, 4, 1), (10, 4, 1), (10, 8, 1), (10, 9, 1)]


def test_counts_of_a_thawed_driver_take_nothing_back(place: LocalFolder) -> None:
    """It was taken for dead, and another one has gone on."""
    frozen, next_one = watch_of(place), watch_of(place)
    frozen.observe(20, 3, 1)
    with next_one.looking():
        next_one.observe(20, 12, 2)
    with frozen.looking():
        pass
    assert progress(place) == (20, 12, 2)


def test_same_progress_is_written_once(place: LocalFolder) -> None:
    watch = watch_of(place)
    with watch.looking():
        watch.observe(10, 4, 1)
    place.delete([PROGRESS])
    with watch.looking():
        watch.observe(10, 4, 1)
    assert place.head(PROGRESS) is None


def test_job_without_a_batch_is_never_over() -> None:
    watch = BatchWatch()
    with watch.looking():
        watch.observe(10, 4, 1)
        watch.complete()
        watch.check()
    assert (watch.decision, watch.asks_no_more) == (None, False)
    assert not watch.is_ended_by(ValueError())
