# SPDX-License-Identifier: Apache-2.0
"""Rows that come in buckets are written under their ordinals, whatever becomes of their replica."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.job.parts.part import Part, listed
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.process_parts import PartWriter
from airflow_provider_raybatch.job.row_order.grouping import ByPrefix
from tests.support.replicas import Place, do, lines, until, work, written
from tests.support.scripted import Scripted

ROWS = 400


@pytest.fixture
def place(place: Place) -> Place:
    """Four rows on each of 100 documents, in random order."""
    place.batch = 16
    texts = [f"{document:08d} question {number}" for document in range(100) for number in range(4)]
    random.Random(7).shuffle(texts)
    place.source.write_text(lines(*({"id": number, "text": text} for number, text in enumerate(texts))))
    place.grouping = ByPrefix(8, buckets=3)
    return place


def check(rows: list[dict[str, Any]]) -> None:
    """Each row is there once, with its own columns and its own answer."""
    assert sorted(row["ordinal"] for row in rows) == list(range(ROWS))
    for row in rows:
        assert row["ordinal"] == row["input"]["id"]
        assert row["output"]["response"] == row["input"]["text"]


def test_rows_keep_their_ordinals(place: Place) -> None:
    slowly = {"engine_args": {"seconds_per_token": 0.01}, "flush_interval": 0.05}
    done = do(place, place.replica(engine="echo", rows_in_flight=64, **slowly))
    assert len(done) > 1
    check(written(place, *done))


def test_rows_of_a_document_go_into_the_engine_together(place: Place) -> None:
    do(place, place.replica(engine="echo", rows_in_flight=8))
    documents = [prompt[:8] for prompt in Scripted.asked]
    changes = sum(one != other for one, other in itertools.pairwise(documents))
    assert len(documents) == ROWS
    assert changes <= 110


def test_what_a_lost_replica_has_written_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not report its last parts: their ordinals are those of the input, not of the queue."""
    fields: dict[str, Any] = {"engine": "echo", "rows_in_flight": 40, "replicas": 2, "flush_interval": 0.05}
    fields["engine_args"] = {"seconds_per_token": 0.01}
    first = place.replica(**fields)
    coordinator, write = place.coordinator, PartWriter.write

    def write_and_die(writer: PartWriter, rows: Sequence[Row]) -> list[Part]:
        made = write(writer, rows)
        if coordinator._queue.unfinished < ROWS:  # it has reported what it wrote before
            raise InterruptedError
        return made

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, "write", write_and_die)
        with pytest.raises(InterruptedError):
            do(place, first)
    news = [done for _, done in coordinator.news()[1]]
    assert (
        0 < ROWS - coordinator._queue.unfinished < sum(part.rows for part in listed(place.out.list("parts")))
    )
    news += do(place, place.replica(**fields))  # of the same actor
    check(written(place, *news))


def test_replicas_share_buckets(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take rows of one, and give back rows that others get then."""
    fields: dict[str, Any] = {"engine": "echo", "rows_in_flight": 60, "replicas": 3}
    fields["engine_args"] = {"seconds_per_token": 0.01}
    replicas = [place.replica(actor=f"actor-{number}", **fields) for number in range(3)]

    async def story() -> None:
        first = asyncio.ensure_future(work(replicas[0]))
        await until(lambda: replicas[0].report.rows)
        await asyncio.gather(first, *(work(replica) for replica in replicas[1:]))

    asyncio.run(story())
    assert all(replica.report.rows for replica in replicas)
    check(written(place, *(done for _, done in place.coordinator.news()[1])))
