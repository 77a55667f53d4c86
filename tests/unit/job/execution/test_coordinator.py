# SPDX-License-Identifier: Apache-2.0
"""Which replicas of a range start their engine, and which may leave."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.job.execution.calls import SILENT, Begun, Model, Report, no_rows
from airflow_provider_raybatch.job.execution.coordinator import Coordinator, Order
from airflow_provider_raybatch.job.execution.question import Question
from airflow_provider_raybatch.job.execution.rows_to_do import Input
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.monitor.board import ReplicaReport
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import spec


class Board(Coordinator):
    """Of one piece of rows."""

    def __init__(self, rows: int, fewest: int, folder: str = "/nowhere") -> None:
        super().__init__(LocalFolder(folder))
        todo = np.packbits(np.zeros(rows, np.bool_))
        self.begin(Input([Chunk(0, 0, rows, 0, 0, rows)], [rows], todo), "parts", fewest, ())

    def starts(self, name: str) -> bool:
        """An actor's process starts. Returns whether it opens its engine."""
        self.start(name, name)
        return self.is_needed(name)

    def ready(self, name: str, slots: int = 4) -> None:
        self.start(name, name)
        self.join(name, slots)

    def asks(self, name: str, order: Order | None = None) -> Order:
        """Ask, with all rows of an earlier order finished."""
        rows = no_rows() if order is None else order.grant.rows
        return self.pull(name, Report(answered=len(rows), finished=rows))


def test_before_the_rows_are_known_each_replica_is_needed() -> None:
    board = Coordinator(LocalFolder("/nowhere"))
    board.start("actor", "first")
    assert board.is_needed("first")
    assert (board.model(), board.assignment()) == (None, None)
    assert board.report(ReplicaReport("first", "node")) == (False, False)
    assert board.start("actor", "second") == 0  # one death may be the node's
    assert board.start("actor", "third") == 1
    board.begin(Input([], [], np.zeros(0, np.uint8)), "parts", 1, "the job")
    assert board.assignment() == "the job"
    assert not board.is_needed("third")


def test_who_waits_is_told_that_nothing_is_to_do() -> None:
    board = Coordinator(LocalFolder("/nowhere"))
    board.start("actor", "first")
    board.dismiss()
    assert (board.model(), board.assignment()) == (False, False)
    assert not board.is_needed("first")


def test_one_process_answers_a_question() -> None:
    board, question = Coordinator(LocalFolder("/nowhere")), Question(len, ("four",))
    for name in ("first", "second"):
        board.start(name, name)
    board.ask(question)
    assert board.model("stranger") is None
    assert board.model("first") == question
    assert board.model("second") is None
    board.answer("second", 5, None)
    assert board.answered() == (True, None)
    board.answer("first", 4, None)
    board.start("first", "first again")  # its end changes nothing any more
    assert board.answered() == (True, (4, None))


def test_another_process_answers_if_one_ends_before() -> None:
    board, question = Coordinator(LocalFolder("/nowhere")), Question(len, ("four",))
    board.start("actor", "first")
    board.ask(question)
    assert board.model("first") == question
    board.start("actor", "second")
    assert board.answered() == (True, None)
    assert board.model("second") == question
    board.answer("first", 5, None)
    assert board.answered() == (True, None)


def test_a_process_that_still_imports_is_waited_for() -> None:
    board = Coordinator(LocalFolder("/nowhere"))
    board.ask(Question(len, ("four",)))
    assert board.answered() == (False, None)
    board.start("actor", "first")
    assert board.answered() == (True, None)


def test_a_silent_process_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    board = Coordinator(LocalFolder("/nowhere"))
    board.start("actor", "first")
    board.ask(Question(len, ("four",)))
    now = SILENT - 1
    board.report(ReplicaReport("first", ""))
    now += SILENT - 1
    assert board.answered() == (True, None)
    now += 2  # its node is lost
    assert board.answered() == (False, None)


def test_a_question_can_be_taken_back() -> None:
    board = Coordinator(LocalFolder("/nowhere"))
    board.start("actor", "first")
    board.ask(Question(len, ("four",)))
    board.ask(None)
    assert (board.model("first"), board.answered()[1]) == (None, None)


def test_a_replica_is_needed_while_rows_are_free() -> None:
    board = Board(rows=10, fewest=1)
    board.ready("first")
    assert len(board.asks("first").grant.rows) == 10
    assert board.starts("another")  # it will get some of the rows that the first holds beyond its slots
    board.lost("first", False, Begun(no_rows()), Report(), None)
    assert board.starts("a third one")


def test_no_replica_is_needed_for_rows_that_are_all_in_engines() -> None:
    board = Board(rows=4, fewest=2)
    board.ready("first")
    board.asks("first")
    assert board.starts("second")  # of the fewest
    assert not board.starts("third")
    board.start("second", "second again")  # it has died
    assert board.is_needed("second again")
    assert not board.starts("fourth")


def test_one_that_was_not_needed_counts_no_longer() -> None:
    """It neither makes others leave rows for it, nor stands for one of the fewest."""
    board = Board(rows=4, fewest=1)
    board.ready("first")
    board.asks("first")
    assert not board.starts("second")
    assert board._roster.starting == set()
    board._fewest = 2
    assert board.starts("third")
    assert not board.starts("fourth")


def test_suspected_rows_need_a_replica() -> None:
    board = Board(rows=4, fewest=1)
    board.ready("first")
    board.ready("second")
    rows = board.asks("first").grant.rows
    board.lost("first", True, Begun(rows), Report(), None)
    assert board.starts("third")
    assert not board.asks("second").leaves


@pytest.mark.parametrize("fewest", [1, 5])
def test_nothing_is_needed_when_all_is_done_or_the_job_drains(fewest: int) -> None:
    board = Board(rows=4, fewest=fewest)
    board.ready("first")
    order = board.asks("first")
    assert board.asks("first", order).is_finished
    assert not board.starts("second")
    draining = Board(rows=400, fewest=fewest)
    draining.drain()
    assert not draining.starts("first")


def test_those_that_have_nothing_leave_down_to_the_fewest() -> None:
    board = Board(rows=4, fewest=2)
    names = ["first", "second", "third", "fourth"]
    for name in names:
        board.ready(name)
    orders: dict[str, Any] = {name: board.asks(name) for name in names}
    assert sum(len(order.grant.rows) for order in orders.values()) == 4
    busy = next(name for name in names if len(orders[name].grant.rows))
    for name in names:
        if name != busy and len(orders[name].grant.rows):
            orders[name] = board.asks(name, orders[name])
    left = [name for name in names if name != busy and (orders[name].leaves or board.asks(name).leaves)]
    assert len(left) == 2
    assert board.news()[3]
    board.leave(left[0])  # as it does when it ends
    last = board.asks(busy, orders[busy])
    assert last.is_finished
    assert not last.leaves


def test_a_replica_stays_while_another_can_give_rows_back() -> None:
    board = Board(rows=16, fewest=1)
    board.ready("first", slots=4)
    rows = board.asks("first").grant.rows
    board.ready("second", slots=4)
    assert not board.asks("second").leaves
    _, asks_now = board.report(ReplicaReport("first", "n"))
    assert asks_now
    count = board.asks("first").grant.give_back
    assert count
    assert not board.asks("second").leaves  # they are on their way
    board.give_back("first", rows[-count:])
    order = board.asks("second")
    assert len(order.grant.rows)
    assert not order.leaves


def test_by_default_all_stay() -> None:
    board = Board(rows=4, fewest=3)
    for name in ("first", "second", "third"):
        board.ready(name, slots=10)
    orders = [board.asks(name) for name in ("first", "second", "third")]
    assert not any(order.leaves for order in orders)


class Engines:
    """What a broker does at the end.

    :param most: replicas of the job.
    :ivar opens: with what engines that still start are opened.
    """

    opens: Model | None = None
    has_given = False

    def __init__(self, most: int) -> None:
        self.most = most

    def close(self, model: Model | None) -> None:
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
    board = Coordinator(LocalFolder("/nowhere"), lambda: engines)  # type: ignore[arg-type, return-value]
    model = Model(spec(engine="echo"))
    board.load(model)
    if ends != "before it begins":
        pieces = [Chunk(0, 0, 1, 0, 0, 1)] if ends == "rows left" else []
        rows = [1 for _ in pieces]
        board.begin(Input(pieces, rows, np.zeros(len(rows), np.uint8)), "parts", 2, "the job")
    if ends == "stopped":
        board.drain()
    assert board.close() is False
    assert engines.opens == (model if opens else None)
