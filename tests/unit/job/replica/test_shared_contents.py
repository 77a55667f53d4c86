# SPDX-License-Identifier: Apache-2.0
"""What replicas read for each other leaves Ray's object store as soon as it can, and not before."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.job.replica import contents as contents_module
from tests.support.replicas import Board, Handle


class Reference:
    """Stands for a reference to an object: the store keeps the object as long as one is there."""


class Store(Board):
    """Of one piece of 24 rows: "reader" gets the first 12, and "borrower" the rest."""

    def __init__(self) -> None:
        super().__init__(rows=24)
        self._objects: weakref.WeakSet[Reference] = weakref.WeakSet()
        self.ready("reader", "borrower")

    def puts(self, name: str) -> None:
        reference = Reference()
        self._objects.add(reference)
        self.share(name, {0: [reference]})

    @property
    def objects(self) -> int:
        return len(self._objects)


def shared() -> Store:
    """Return a store whose piece is given out, and not yet fetched by the borrower."""
    store = Store()
    assignment = store.asks("reader")
    assert (len(assignment.rows), assignment.put) == (12, {0})
    store.puts("reader")
    assert store.asks("borrower").borrow == {0}
    assert store.asks("reader").release == (0,)
    assert store.objects == 1
    assert store.content(0)
    return store


def test_one_that_comes_late_is_still_fetched() -> None:
    """The rest of a piece is given out before its reader has put it into the store."""
    store = Store()
    store.asks("reader")
    store.asks("borrower")
    assert store.content(0) is None
    store.puts("reader")
    assert store.content(0)
    store.fetched("borrower", {0})
    store.puts("reader")  # it comes again, and none waits for it any more
    assert store.objects == 0


def test_a_lost_borrower_does_not_keep_it() -> None:
    """Its rows are free again: the next replica puts their piece there for others."""
    store = shared()
    store.dies("borrower")
    assert store.objects == 0
    store.ready("second", "third")
    assert store.asks("second").put == {0}
    store.puts("second")
    assert (store.asks("third").borrow, store.objects) == ({0}, 1)
    store.fetched("third", {0})
    assert store.objects == 0


def test_a_lost_reader_does_not_keep_it() -> None:
    """Another one reads the piece, and puts it there again for the rest."""
    store = Store()
    store.asks("reader")
    store.puts("reader")
    store.dies("reader")
    assert (store.objects, store.content(0)) == (0, None)
    assert store.asks("borrower").put == {0}


def test_what_is_given_back_comes_once_and_is_dropped() -> None:
    store = shared()
    store.fetched("borrower", {0})
    assert store.give_back("reader", np.arange(10, 12)) == (0,)
    store.puts("reader")
    assert store.give_back("borrower", np.arange(22, 24)) == ()  # it is there
    assert store.objects == 1
    assignment = store.asks("borrower", range(12, 22))
    assert sorted(assignment.rows.tolist()) == [10, 11, 22, 23]
    store.fetched("borrower", assignment.borrow)
    assert store.objects == 0


def test_a_process_fetches_it_for_each_of_its_orders() -> None:
    """The end of one order must not take it from the next."""
    store = shared()
    store.give_back("reader", np.arange(8, 12))
    store.puts("reader")
    assert store.asks("borrower", range(12, 24)).borrow == {0}
    store.fetched("borrower", {0})
    assert store.objects == 1
    store.fetched("borrower", {0})
    assert store.objects == 0


def test_a_replica_that_leaves_does_not_keep_it() -> None:
    store = shared()
    store.leave("borrower")
    store.asks("reader", range(12))
    assert store.asks("reader").borrow == set()
    assert store.objects == 0


def test_a_reader_puts_what_it_still_has_for_its_next_borrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the borrower waits for 10 s, and reads the piece from storage."""

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def story() -> None:
        for finished, borrower in ((), "borrower"), (range(12), "third"):
            assignment = store.asks("reader", finished)
            assert assignment.put == {0}
            await contents.begin(assignment)
            await contents.of(0, assignment)
            assert store.asks(borrower).borrow == {0}
            assert store.content(0)
            store.dies(borrower)
            store.ready("third")

    monkeypatch.setattr(contents_module, "_put", lambda read: {piece: [Reference()] for piece in read})
    store, reads = Store(), list[Any]()
    process: Any = SimpleNamespace(
        process="reader",
        coordinator=Handle(store, job=None, plan=None),
        plan=SimpleNamespace(replicas=2),
        reader=SimpleNamespace(content=reads.append),
        thread=at_once,
    )
    contents = contents_module.Contents(process)
    asyncio.run(story())
    assert len(reads) == 1
