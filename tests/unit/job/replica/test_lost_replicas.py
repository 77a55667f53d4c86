# SPDX-License-Identifier: Apache-2.0
"""A replica dies without a word while storage is away: its parts can't be listed, and may hold its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica import coordinator as coordinator_module
from airflow_provider_raybatch.job.scheduling.messages import SILENT, Begun, PullRequest, StaleReplicaError
from airflow_provider_raybatch.job.scheduling.row_index import no_rows
from airflow_provider_raybatch.job.work import Done
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.replicas import Board, eventually

ROWS = 8


class Storage:
    """A destination that lists nothing until it is back.

    :ivar error: what its answer is then.
    :ivar entries: files that it lists.
    """

    uri = "s3://bucket/out"

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.error: Exception | None = None
        self.entries: list[Entry] = []

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        assert self.is_back.wait(60), "the coordinator waits for storage"
        if self.error is not None:
            raise self.error
        return self.entries


def rows_of(coordinator: Board, process: str) -> list[int]:
    return sorted(coordinator.asks(process).rows.tolist())


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr(parts, "keys_in", lambda *_: [])
    made = Storage()
    yield made
    made.is_back.set()


@pytest.fixture
def coordinator(storage: Storage) -> Board:
    """With one replica that has all rows, and another one that waits."""
    made = Board(ROWS, folder=cast(Folder, storage))
    made.ready("a-1", slots=ROWS)
    assert rows_of(made, "a-1") == list(range(ROWS))
    made.ready("b-1", slots=ROWS)
    return made


def restarted(coordinator: Board) -> bool:
    return coordinator.start("a-1", "a-2", Begun(no_rows())) is not None


def silent(coordinator: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first replica be silent for too long; the driver's own pauses don't count."""
    clock, passed = time.monotonic, 3600.0
    monkeypatch.setattr(coordinator_module.time, "monotonic", lambda: clock() + passed)
    coordinator.news()
    assert "a-1" in coordinator._membership
    while passed < 3600 + SILENT + 2:
        passed += 1.0
        coordinator.report(ReplicaProgress("b-1", "n"))
        coordinator.news()


def test_the_coordinator_answers_while_storage_is_away(coordinator: Board, storage: Storage) -> None:
    assert not restarted(coordinator)
    assert coordinator.news()[2:] == (False, True)
    assert rows_of(coordinator, "b-1") == []  # they may be in parts that are not found yet
    assert not restarted(coordinator)  # it may have died of one of them
    storage.is_back.set()
    eventually(lambda: restarted(coordinator))
    assert rows_of(coordinator, "b-1") == list(range(ROWS))


def test_what_it_had_written_is_done_when_storage_is_back(coordinator: Board, storage: Storage) -> None:
    written = "parts/a-1-000001.10.0-2.3.3.parquet"
    storage.entries = [Entry(written, 10, ""), Entry("parts/b-1-000001.10.7-7.1.1.parquet", 10, "")]
    assert not restarted(coordinator)
    storage.is_back.set()
    rows = eventually(lambda: rows_of(coordinator, "b-1"))
    assert rows == list(range(3, ROWS))
    assert [part.path for _, done in coordinator.news()[1] for part in done.parts] == [written]


def test_a_silent_replica_is_told_as_storage_while_that_is_away(
    coordinator: Board, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again at each call: its rows stay with it, and its name is known no more."""
    silent(coordinator, monkeypatch)
    storage.error = StorageError("destination: can't list s3://bucket/out/parts (timed out).")
    storage.is_back.set()

    def told() -> Exception | None:
        try:
            coordinator.news()
        except Exception as error:
            return error
        return None

    for _ in range(3):
        error = eventually(told)
        assert diagnose(error) == (FailureClass.STORAGE, str(storage.error))
    assert rows_of(coordinator, "b-1") == []


def test_a_silent_replica_that_lives_still_has_no_say(
    coordinator: Board, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(coordinator, monkeypatch)
    for call in (
        lambda: coordinator.asks("a-1", range(3)),
        lambda: coordinator.give_back("a-1", np.arange(3)),
        lambda: coordinator.join("a-1", 4),
    ):
        with pytest.raises(StaleReplicaError):
            call()
    coordinator.leave("a-1")
    coordinator.dies("a-1", True, range(3))
    assert rows_of(coordinator, "b-1") == []
    assert not restarted(coordinator)
    storage.is_back.set()
    eventually(lambda: restarted(coordinator))
    assert rows_of(coordinator, "b-1") == [0, 1, 2, 3]  # suspected ones, the first half


def test_others_stay_for_rows_that_are_not_free_yet(coordinator: Board, storage: Storage) -> None:
    assert not restarted(coordinator)
    assert not coordinator.asks("b-1").leaves
    assert coordinator.starts("c-1")
    storage.is_back.set()


def test_a_replica_without_rows_has_nothing_to_look_for(coordinator: Board, storage: Storage) -> None:
    assert coordinator.start("b-1", "b-2") == 0
    coordinator.asks("a-1", range(ROWS))
    assert coordinator.start("a-1", "a-2") == 0
    assert coordinator.news()[2:] == (True, False)


@pytest.mark.parametrize("end", ["leaves", "loses its engine", "is killed", "is killed before its report"])
def test_answers_of_earlier_steps_outlive_their_process(
    coordinator: Board, storage: Storage, end: str
) -> None:
    """Its rows are not done: whoever gets them asks the next step alone, however the process ended."""
    path = "first/a-1-000001.10.0-2.3.3.parquet"
    part = Part(path, 3, 3, 0, 2, 10)
    coordinator._part_folders = ["first", "parts"]
    storage.entries = [Entry(path, 10, "")]
    storage.is_back.set()
    if end != "is killed before its report":
        done = Done([], {}, ReplicaProgress("a-1", "n"), [(0, part)])
        assert coordinator.pull("a-1", PullRequest(), done).answers == ()
    if end == "leaves":
        coordinator.leave("a-1")
    elif end == "loses its engine":
        coordinator.dies("a-1")
    else:
        eventually(lambda: restarted(coordinator))
    assignment = coordinator.asks("b-1")
    assert (list(assignment.answers), len(assignment.rows) > 0) == ([(0, part)], True)
    assert coordinator.asks("b-1").answers == ()  # each process learns them once
