# SPDX-License-Identifier: Apache-2.0
"""Jobs that answer a batch of the Batch API: however it ends, each line is in one file once."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.monitor.money import HeldGpus
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.job.output.journal import Journal, SupersededError
from airflow_provider_raybatch.job.phases import driver, generating, publishing
from airflow_provider_raybatch.job.phases.generating import ClaimWatch
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preflight import ready
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.openai_lines import ask, both_files, chat, line
from tests.support.served_batches import LONG, Batch, a_batch, ended_midway, quick_looks
from tests.support.specs import submitted
from tests.support.whole_job import without_cluster

PRICED = {"max_cost": 1.5, "gpu_hour_price": {"L4": 2.0}}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)
    quick_looks(monkeypatch)


@pytest.fixture
def batch(folder: Folder, tmp_path: Path) -> Batch:
    return a_batch(folder, tmp_path)


def no_model(*_: Any) -> Any:
    raise PreflightError("model: it is gone.")


def die_while_publishing(batch: Batch) -> None:
    """Run a driver that ends when all rows are answered and the outcome is decided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            batch.run()


def test_cancelled_batch_keeps_what_is_finished(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_midway(monkeypatch, 8, batch.decide)
    summary = batch.run()
    good, codes = batch.ids()
    assert good == [str(number) for number in range(8)]
    assert codes == {str(number): "batch_cancelled" for number in range(8, 20)}
    assert (summary.rows, summary.errors) == (8, 12)
    assert batch.progress() == (20, 8, 0)


def test_batch_expires_by_the_drivers_clock(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    watch = driver.BatchWatch
    monkeypatch.setattr(driver, "BatchWatch", lambda *given: watch(*given, clock=lambda: now))

    def pass_time() -> None:
        nonlocal now
        now = 2000.0

    ended_midway(monkeypatch, 8, pass_time)
    batch.run(expires_at=1500.0)
    good, codes = batch.ids()
    assert (len(good), set(codes.values()), len(codes)) == (8, {"batch_expired"}, 12)
    assert batch.outcome() == "expired"


@pytest.mark.parametrize(
    ("limits", "dies_undecided"),
    [
        ({"max_tokens_total": 1}, False),
        ({"max_gpu_hours": 0.5}, False),
        (PRICED, False),
        (PRICED, True),
    ],
)
def test_batch_that_reaches_a_limit_keeps_what_is_finished(
    limits: Any, dies_undecided: bool, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver dies when it knows, or before it publishes; the next ones ask nothing."""
    said = list[Any]()
    held = HeldGpus(1.0, time.time() - 3600, lambda _: "L4", {"L4": 1.0})
    monkeypatch.setattr(generating, "held_gpus", lambda *_: held)
    with monkeypatch.context() as patch:
        ended_midway(patch, 8, lambda: None)
        place, name = (BatchWatch, "is_ended_by") if dies_undecided else (publishing, "prepare")
        patch.setattr(place, name, lambda *_: 1 / 0)
        with pytest.raises((RaybatchError, ZeroDivisionError)):
            batch.run(**limits)
    assert batch.outcome() == (None if dies_undecided else "limit_reached")
    monkeypatch.setattr(ready, "check_engine", no_model)
    monkeypatch.setattr(supervision, "run", no_model)
    batch.run(1, emitted=said, **limits)
    batch.run(2, **limits)
    good, codes = batch.ids()
    assert good == [str(number) for number in range(8)]
    assert codes == {str(number): "batch_limit_reached" for number in range(8, 20)}
    assert batch.progress() == (20, 8, 0)
    (error,) = parse(BatchOutcome, batch.folder.read(layout.OUTCOME)).errors
    (limit,) = set(limits) - {"gpu_hour_price"}
    assert error.code == "limit_reached"
    assert error.message.startswith(f"{limit}: ")
    assert "clear" not in error.message.replace("since the last clear", "")
    assert [error.message] == [event.message for event in said if "error file" in event.text()]


@pytest.mark.parametrize("dies", [False, True])
def test_batch_whose_last_line_uses_up_a_limit_is_completed(
    dies: bool, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to ask, also for the next driver, if the first one dies before it publishes."""
    ended_midway(monkeypatch, 20, lambda: None)
    if dies:
        with monkeypatch.context() as patch:
            patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
            with pytest.raises((RaybatchError, ZeroDivisionError)):
                batch.run(max_tokens_total=1)
        monkeypatch.setattr(supervision, "run", no_model)
    batch.run(int(dies), max_tokens_total=1)
    assert batch.ids() == ([str(number) for number in range(20)], {})
    assert (batch.outcome(), batch.progress()) == ("completed", (20, 20, 0))


def test_limit_is_decided_though_parts_can_not_be_read(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise StorageError("the store is away.")

    ended_midway(monkeypatch, 8, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "finished", away)
        with pytest.raises(StorageError):
            batch.run(max_tokens_total=1)
    assert batch.outcome() == "limit_reached"
    monkeypatch.setattr(supervision, "run", no_model)
    batch.run(1, max_tokens_total=1)
    assert len(batch.ids()[0]) == 8


def test_superseded_job_decides_no_limit(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was frozen counts the GPU hours meanwhile, before it learns that another one answers."""
    held = HeldGpus(1.0, time.time() - 3600, lambda _: "L4", {"L4": 1.0})
    monkeypatch.setattr(generating, "held_gpus", lambda *_: held)
    monkeypatch.setattr(generating, "ClaimWatch", lambda _: ClaimWatch(lambda: None))
    ended_midway(monkeypatch, 8, Journal(batch.dataset, submitted(1).submission, take_over=False).claim)
    with pytest.raises(SupersededError):
        batch.run(max_gpu_hours=0.5)
    assert batch.outcome() is None


@pytest.mark.parametrize("decision", ["cancelled", "expired"])
def test_decided_batch_needs_neither_model_nor_nodes(
    decision: Any, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "check_engine", no_model)
    monkeypatch.setattr(cluster_view, "wait_for", no_model)
    monkeypatch.setattr(supervision, "run", no_model)
    if decision == "cancelled":
        batch.decide()
    batch.run(expires_at=LONG if decision == "cancelled" else 1.0)
    good, codes = batch.ids()
    assert (good, set(codes.values())) == ([], {f"batch_{decision}"})
    assert batch.outcome() == decision


@pytest.mark.parametrize("check", ["check_ids", "check_rows", "open_store", "check_engine"])
def test_batch_cancelled_before_its_job_fails_is_published(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        batch.decide()
        no_model()

    def read_twice(*_: Any) -> None:
        raise AssertionError("the source was known")

    monkeypatch.setattr(ready, check, fail)
    monkeypatch.setattr(publishing, "read_source", read_twice)
    assert batch.run().errors == 20


def test_job_of_an_open_batch_fails_as_others_do(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "check_engine", no_model)
    with pytest.raises(PreflightError, match="it is gone"):
        batch.run()
    assert batch.outcome() is None


def test_wait_for_nodes_ends_with_the_batch(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(*given: Any) -> None:
        batch.decide()
        *_, check = given
        while True:
            check()

    monkeypatch.setattr(cluster_view, "wait_for", wait_for)
    assert batch.run().errors == 20


def test_answered_batch_is_completed_before_its_commit(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, seen = publishing.prepare, []

    def look(*given: Any) -> Any:
        seen.append(batch.outcome())
        return prepare(*given)

    monkeypatch.setattr(publishing, "prepare", look)
    batch.run()
    assert seen == ["completed"]
    assert len(batch.ids()[0]) == 20
    assert batch.progress() == (20, 20, 0)


def test_late_cancel_of_an_answered_batch_loses_nothing(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = BatchWatch.complete

    def late(watch: BatchWatch) -> None:
        batch.decide()
        complete(watch)

    monkeypatch.setattr(BatchWatch, "complete", late)
    batch.run()
    assert (len(batch.ids()[0]), batch.ids()[1], batch.outcome()) == (20, {}, "cancelled")


def test_completed_batch_is_published_without_its_model(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after it has decided, and the model is deleted before the next one starts."""
    die_while_publishing(batch)
    monkeypatch.setattr(ready, "check_engine", no_model)
    batch.run(1)
    assert len(batch.ids()[0]) == 20


def test_completed_batch_asks_lost_rows_again(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    die_while_publishing(batch)
    part = next(one.path for one in batch.dataset.list(layout.PARTS) if one.path.endswith(".parquet"))
    batch.dataset.delete([part])
    batch.run(1)
    assert len(batch.ids()[0]) == 20


def test_failed_batch_ends_its_job(batch: Batch) -> None:
    batch.decide("failed")
    with pytest.raises(RaybatchError, match="has failed already") as caught:
        batch.run()
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert not batch.dataset.list(layout.DATA)


def test_unanswered_lines_are_not_counted_as_errors(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_midway(monkeypatch, 8, batch.decide)
    assert batch.run(max_errors=0, max_error_fraction=0.0).errors == 12


def test_failed_line_is_asked_once(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = a_batch(folder, tmp_path, 6)
    asked: list[str] = []
    generate = EchoEngine.generate

    async def failing(engine: EchoEngine, encoded: Any) -> Any:
        asked.append(encoded.prompt)
        if "question 3" in encoded.prompt:
            return RowFailure("engine", "RuntimeError: it broke")
        return await generate(engine, encoded)

    monkeypatch.setattr(EchoEngine, "generate", failing)
    die_while_publishing(batch)
    batch.folder.delete([layout.OUTCOME])
    batch.run(1)
    assert len(asked) == 6
    assert list(batch.ids()[1]) == ["3"]
    assert batch.progress() == (6, 5, 1)


def test_unreadable_lines_keep_what_names_them(folder: Folder, tmp_path: Path) -> None:
    lines = [line("a", chat()), '{"custom_id": "b", "body": {"custom_id": "x"}, ', "[]", b"\xff"]
    batch = Batch(folder, ask(tmp_path / "in.jsonl", lines))
    batch.decide()
    batch.run()
    assert [one["custom_id"] for one in both_files(batch.dataset)[1]] == ["a", "b", None, None]


def test_other_jobs_look_for_no_batch(batch: Batch) -> None:
    seen: list[str] = []
    batch.decide()

    class Emitted(list[Any]):
        def append(self, event: Any) -> None:
            seen.extend(thread.name for thread in threading.enumerate())
            super().append(event)

    assert batch.run(served_batch=None, emitted=Emitted()).rows == 20
    assert "raybatch-served-batch" not in seen


class Dying:
    """Kills the driver, as far as that can be done in one process, before a write of its own.

    :param at: number of the write.
    """

    def __init__(self, patch: pytest.MonkeyPatch, place: Folder, at: int) -> None:
        self.writes, self._at = 0, at
        for name in ("write", "create", "delete"):
            patch.setattr(type(place), name, self._before(getattr(type(place), name)))

    def _before(self, function: Any) -> Any:
        def call(*given: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self.writes += 1
                if self.writes == self._at:
                    raise KeyboardInterrupt
            return function(*given)

        return call


_STEP = 8
thorough = pytest.mark.thorough("a driver that dies at each write; every second one runs always")


@pytest.mark.parametrize(
    "first", [pytest.param(one, marks=thorough) if one % 2 else one for one in range(_STEP)]
)
def test_driver_may_die_before_any_write(
    first: int, disk: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each driver dies some writes later than the one before; all come to the same result."""
    results = set()
    for at in range(1 + first, 100, _STEP):
        place = tmp_path / str(at)
        place.mkdir()
        batch = a_batch(type(disk)(str(place / "batch")), place, 12, different=8)
        with monkeypatch.context() as patch:
            ended_midway(patch, 5, batch.decide)
            dying = Dying(patch, disk, at)
            with contextlib.suppress(KeyboardInterrupt):
                batch.run(sampling={"temperature": 0})
        is_over = dying.writes < at
        if batch.outcome() is None:
            batch.decide()
        batch.run(1, sampling={"temperature": 0})
        good, codes = batch.ids()
        assert len(good) + len(codes) == 12
        assert set(codes.values()) == {"batch_cancelled"}
        results.add(tuple(good))
        if is_over:
            break
    assert is_over
    # One that dies before any answer has none.
    assert () in results or first > 0
    assert results - {()} == {("0", "1", "2", "3", "4")}
