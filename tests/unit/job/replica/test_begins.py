# SPDX-License-Identifier: Apache-2.0
"""Which rows begin first in a replica, and how many it keeps for others."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_raybatch.job.replica import prefetcher
from airflow_provider_raybatch.job.row_order import grouping
from tests.support.replicas import Place, do, lines, meanwhile, until, work
from tests.support.scripted import Scripted


@pytest.fixture
def one_batch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that are prepared at the same time may overtake each other, and here they have two rows."""
    monkeypatch.setattr(prefetcher, "_AT_ONCE", 1)


@pytest.mark.usefixtures("one_batch_at_a_time")
def test_rows_with_the_longest_answers_begin_first(place: Place) -> None:
    """The rows' own limits decide, wherever they are stored; equal ones keep the order on disk."""
    limits = [16, 700, 60, 700, 16, 1000, 250]
    rows = ({"text": f"{number}", "sampling": {"max_tokens": limit}} for number, limit in enumerate(limits))
    place.source.write_text(lines(*rows))
    place.batch = 2
    do(place, place.replica(engine="echo", rows_in_flight=2, sampling_column="sampling"))
    assert Scripted.asked == ["5", "1", "3", "6", "2", "0", "4"]


def test_answer_lengths_are_learned_from_prompt_lengths(place: Place) -> None:
    """The echo of a long prompt is long: once 16 rows of each kind are finished, long prompts begin first."""
    texts = ["a", "a " * 39 + "a"] * 60
    place.write(*texts)
    place.batch = 200
    do(place, place.replica(engine="echo", rows_in_flight=32, deduplicate=False))
    assert Scripted.asked[:32] == texts[:32]
    kinds = [len(prompt) > 1 for prompt in Scripted.asked[64:]]
    assert kinds == sorted(kinds, reverse=True)
    assert len(set(kinds)) == 2


@pytest.mark.usefixtures("one_batch_at_a_time")
def test_rows_that_begin_alike_follow_each_other(place: Place) -> None:
    """So the engine gets them while their prefix is in its cache, wherever they are stored."""
    documents = [letter * grouping.LONG for letter in "cab"]
    texts = [f"All: {documents[number % 3]} {'x' * (number + 1)}" for number in range(9)]
    place.write(*texts)
    place.batch = 2
    do(place, place.replica(engine="echo", rows_in_flight=3))
    assert Scripted.asked == sorted(texts)


def test_a_replica_says_at_once_how_many_rows_it_lets_in(place: Place) -> None:
    """Before anything is answered, so that one that comes gets the others."""
    limits = [1000] * 10 + [10] * 590
    rows = ({"text": f"wait {number}", "sampling": {"max_tokens": one}} for number, one in enumerate(limits))
    place.source.write_text(lines(*rows))
    replica = place.replica(engine="echo", sampling_column="sampling")
    queue = place.coordinator._queue

    def waits() -> bool:
        return queue._replicas.ahead.get(replica.process) == 600 - 256 and len(Scripted.asked) == 256

    meanwhile(replica, waits, replica.draining.set)
    assert len(Scripted.asked) == 256


def test_what_is_in_the_engine_is_not_for_others(place: Place) -> None:
    """Also where it lets fewer in by now: here since a row is answered that might have been the longest."""
    limits = [1000] * 10 + [10] * 589
    rows = ({"text": f"wait {number}", "sampling": {"max_tokens": one}} for number, one in enumerate(limits))
    place.source.write_text(lines({"text": "wait for it"}, *rows))
    replica = place.replica(engine="echo", sampling_column="sampling")
    coordinator = place.coordinator

    async def story() -> None:
        working = asyncio.ensure_future(work(replica))
        await until(lambda: len(Scripted.asked) == 320)
        Scripted.events["wait for it"].set()
        await until(lambda: coordinator._queue._replicas[replica.process].answered == 1)
        assert coordinator._queue._replicas.ahead[replica.process] == 600 - 320
        replica.draining.set()
        await working

    asyncio.run(story())
    assert len(Scripted.asked) == 320
