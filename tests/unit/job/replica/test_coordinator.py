# SPDX-License-Identifier: Apache-2.0
"""Which replicas of a range start their engine, and which may leave."""

from __future__ import annotations

import time

import numpy as np
import pytest

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.remote_call import RemoteCall
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.job.scheduling.messages import SILENT
from airflow_provider_raybatch.job.warm_engines.source import EnginePool, EngineSource
from airflow_provider_raybatch.job.work import CheckedModel
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.replicas import Board, one_piece
from tests.support.specs import spec

NOTHING = Input([], [], np.zeros(0, np.uint8))


def test_before_the_rows_are_known_each_replica_is_needed() -> None:
    coordinator = Coordinator(LocalFolder("/nowhere"))
    coordinator.start("actor", "first")
    assert coordinator.is_needed("first")
    assert (coordinator.model(), coordinator.job()) == (None, None)
    assert coordinator.report(ReplicaProgress("first", "node")) == (False, False)
    assert coordinator.start("actor", "second") == 0  # one death may be the node's
    assert coordinator.start("actor", "third") == 1
    coordinator.begin(NOTHING, ["parts"], 1, "the job")
    assert coordinator.job() == "the job"
    assert not coordinator.is_needed("third")


def test_who_waits_is_told_that_nothing_is_to_do() -> None:
    coordinator = Coordinator(LocalFolder("/nowhere"))
    coordinator.start("actor", "first")
    coordinator.release()
    assert (coordinator.model(), coordinator.job()) == (False, False)
    assert not coordinator.is_needed("first")


def test_one_process_answers_a_question() -> None:
    coordinator, question = Coordinator(LocalFolder("/nowhere")), RemoteCall(len, ("four",))
    for name in ("first", "second"):
        coordinator.start(name, name)
    coordinator.ask(question)
    assert coordinator.model("stranger") is None
    assert coordinator.model("first") == question
    assert coordinator.model("second") is None
    coordinator.answer("second", 5, None)
    assert coordinator.answered() == (True, None)
    coordinator.answer("first", 4, None)
    coordinator.start("first", "first again")  # its end changes nothing any more
    assert coordinator.answered() == (True, (4, None))


def test_another_process_answers_if_one_ends_before() -> None:
    coordinator, question = Coordinator(LocalFolder("/nowhere")), RemoteCall(len, ("four",))
    coordinator.start("actor", "first")
    coordinator.ask(question)
    assert coordinator.model("first") == question
    coordinator.start("actor", "second")
    assert coordinator.answered() == (True, None)
    assert coordinator.model("second") == question
    coordinator.answer("first", 5, None)
    assert coordinator.answered() == (True, None)


def test_a_silent_process_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But one that still imports its engine is."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    coordinator = Coordinator(LocalFolder("/nowhere"))
    coordinator.ask(RemoteCall(len, ("four",)))
    assert coordinator.answered() == (False, None)
    coordinator.start("actor", "first")
    now = SILENT - 1
    coordinator.report(ReplicaProgress("first", ""))
    now += SILENT - 1
    assert coordinator.answered() == (True, None)
    now += 2  # its node is lost
    assert coordinator.answered() == (False, None)
    coordinator.ask(None)
    assert (coordinator.model("first"), coordinator.answered()[1]) == (None, None)


def test_a_replica_is_needed_while_rows_are_free() -> None:
    coordinator = Board(rows=10, fewest=1)
    coordinator.ready("first")
    assert len(coordinator.asks("first").rows) == 10
    assert coordinator.starts("another")  # it will get some of the rows that the first holds beyond its slots
    coordinator.dies("first")
    assert coordinator.starts("a third one")


def test_a_replica_leaves_rows_for_one_that_starts() -> None:
    """It stops doing so once that process is lost."""
    coordinator = Board(rows=100)
    coordinator.ready("first", slots=40)
    assert coordinator.starts("second")
    assert len(coordinator.asks("first").rows) == 50
    coordinator._bury("second")
    assert len(coordinator.asks("first").rows) == 50


def test_no_replica_is_needed_for_rows_that_are_all_in_engines() -> None:
    coordinator = Board(rows=4, fewest=2)
    coordinator.ready("first")
    coordinator.asks("first")
    assert coordinator.starts("second")  # of the fewest
    assert not coordinator.starts("third")
    coordinator.start("second", "second again")  # it has died
    assert coordinator.is_needed("second again")
    assert not coordinator.starts("fourth")


def test_one_that_was_not_needed_counts_no_longer() -> None:
    """It neither makes others leave rows for it, nor stands for one of the fewest."""
    coordinator = Board(rows=4, fewest=1)
    coordinator.ready("first")
    coordinator.asks("first")
    assert not coordinator.starts("second")
    assert coordinator._membership.starting == set()
    coordinator._fewest = 2
    assert coordinator.starts("third")
    assert not coordinator.starts("fourth")


def test_suspected_rows_need_a_replica() -> None:
    coordinator = Board(rows=4, fewest=1)
    coordinator.ready("first", "second")
    coordinator.dies("first", True, coordinator.asks("first").rows)
    assert coordinator.starts("third")
    assert not coordinator.asks("second").leaves


@pytest.mark.parametrize("fewest", [1, 5])
def test_nothing_is_needed_when_all_is_done_or_the_job_drains(fewest: int) -> None:
    coordinator = Board(rows=4, fewest=fewest)
    coordinator.ready("first")
    assert coordinator.asks("first", coordinator.asks("first").rows).is_finished
    assert not coordinator.starts("second")
    draining = Board(rows=400, fewest=fewest)
    draining.drain()
    assert not draining.starts("first")


def test_idle_replicas_leave_down_to_the_fewest() -> None:
    coordinator = Board(rows=4, fewest=2)
    coordinator.ready("busy")
    rows = coordinator.asks("busy").rows
    idle = ["second", "third", "fourth"]
    coordinator.ready(*idle)
    assert [coordinator.asks(name).leaves for name in idle] == [True, True, False]
    assert coordinator.news()[3]
    coordinator.leave("second")  # as it does when it ends
    last = coordinator.asks("busy", rows)
    assert last.is_finished
    assert not last.leaves


def test_a_replica_stays_while_another_can_give_rows_back() -> None:
    coordinator = Board(rows=16, fewest=1)
    coordinator.ready("first")
    rows = coordinator.asks("first").rows
    coordinator.ready("second")
    assert not coordinator.asks("second").leaves
    _, asks_now = coordinator.report(ReplicaProgress("first", "n"))
    assert asks_now
    count = coordinator.asks("first").give_back
    assert count
    assert not coordinator.asks("second").leaves  # they are on their way
    coordinator.give_back("first", rows[-count:])
    assignment = coordinator.asks("second")
    assert len(assignment.rows)
    assert not assignment.leaves


def test_reports_are_the_latest_of_each_process() -> None:
    """One that another process has replaced is not waited for, and what it generated is lost."""
    coordinator = Coordinator(LocalFolder("/nowhere"))
    for process, rows in (("r-1", 1), ("s-1", 1), ("r-1", 2)):
        coordinator.report(ReplicaProgress(process, "n", "ready", rows, tokens_in_flight=5))
    for process in ("r-1", "r-2"):
        coordinator.start("r", process)
    found = sorted((one.replica, one.rows, one.state, one.output_tokens) for one in coordinator.snapshot())
    assert found == [("r-1", 2, "ended", 5), ("s-1", 1, "ready", 0)]


class Engines(EngineSource, EnginePool):
    """What a pool of warm engines does at the end.

    :ivar opens: with what engines that still start are opened.
    """

    opens: CheckedModel | None = None
    most = 0

    def __init__(self, most: int) -> None:
        self.most = most

    def pool(self) -> EnginePool:
        return self

    def close(self, model: CheckedModel | None = None) -> None:
        self.opens = model


@pytest.mark.parametrize(
    ("ends", "most", "opens"),
    [
        ("done", 2, True),
        ("done", 3, False),
        ("before it begins", 2, False),
        ("rows left", 2, False),
        ("stopped", 2, False),
    ],
)
def test_engines_still_start_for_the_next_job_when_all_is_done(ends: str, most: int, opens: bool) -> None:
    """Of a range of replicas, more may have begun than it needed; what is stopped might start in vain."""
    engines = Engines(most)
    coordinator = Coordinator(LocalFolder("/nowhere"), engines)
    model = CheckedModel(spec(engine="echo"))
    coordinator.load(model)
    if ends != "before it begins":
        todo = one_piece(1) if ends == "rows left" else NOTHING
        coordinator.begin(todo, ["parts"], 2, "the job")
    if ends == "stopped":
        coordinator.drain()
    assert coordinator.close() is False
    assert engines.opens == (model if opens else None)
