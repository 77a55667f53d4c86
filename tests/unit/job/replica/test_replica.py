# SPDX-License-Identifier: Apache-2.0
"""The way of a row through a replica, without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.parts.part import paid_tokens
from airflow_provider_raybatch.job.replica import replica
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.replicas import Place, do, lines, meanwhile, until, work, written
from tests.support.scripted import Scripted


def test_every_step_that_can_fail_fails_its_row_alone(place: Place) -> None:
    place.source.write_text(
        lines(
            {"text": "good one", "n": 1},
            {"text": None},
            "{broken",
            {"text": "far too many words to fit"},
            {"text": "please break"},
            {"text": "good two"},
        )
    )
    args = {"max_model_len": 5, "fail_pattern": "break"}
    replica = place.replica(engine="echo", engine_args=args)
    (done,) = do(place, replica)
    rows = written(place, done)
    assert [row["ordinal"] for row in rows] == list(range(6))
    assert [row["ok"] for row in rows] == [True, False, False, False, False, True]
    assert [row["failure"] and row["failure"]["step"] for row in rows] == [
        None,
        "template",
        "read",
        "tokenize",
        "engine",
        None,
    ]
    assert rows[2]["failure"]["request"] == "{broken\n"
    assert json.loads(rows[4]["failure"]["request"])["messages"][0]["content"] == "please break"
    assert [row["output"] and row["output"]["response"] for row in rows][0::5] == ["good one", "good two"]
    assert [row["input"]["text"] for row in rows][:2] == ["good one", None]
    (part,) = done.parts
    assert (part.rows, part.ok, part.first, part.last) == (6, 2, 0, 5)
    assert (done.report.rows, done.report.written, done.report.errors) == (6, 6, 4)
    assert (done.report.input_tokens, done.report.output_tokens) == (4, 4)
    assert set(done.seconds) == {"read", "render", "tokenize", "generate", "detokenize", "write"}


def test_rows_that_are_done_are_not_asked_again(place: Place) -> None:
    place.write(*map(str, range(20)))
    replica = place.replica(resolved=[*range(9), 11, *range(16, 20)])
    (done,) = do(place, replica)
    assert [row["ordinal"] for row in written(place, done)] == [9, 10, 12, 13, 14, 15]
    assert [row["output"]["response"] for row in written(place, done)] == ["9", "10", "12", "13", "14", "15"]
    assert done.report.rows == 6


def test_rows_written_but_not_reported_are_not_paid_again(place: Place) -> None:
    place.source.write_text(lines({"text": "a"}, {"text": None}, {"text": "b"}))
    first = place.replica()
    pull = first.coordinator.pull.remote

    async def never(process: str, report: Any, done: str | None = None) -> Any:
        if done is not None:
            raise asyncio.CancelledError
        return await pull(process, report, done)

    first.coordinator.pull = SimpleNamespace(remote=never)
    with pytest.raises(asyncio.CancelledError):
        do(place, first)
    second = place.replica()
    (done,) = do(place, second)
    assert [row["ok"] for row in written(place, done)] == [True, False, True]
    assert done.report.replica == first.process
    assert second.report.rows == 0


def test_a_chunk_of_bad_rows_alone(place: Place) -> None:
    place.source.write_text(lines({"text": "a"}, *["{"] * 19))
    replica = place.replica(resolved=[*range(8), *range(16, 20)])
    (done,) = do(place, replica)
    assert [row["failure"]["step"] for row in written(place, done)] == ["read"] * 8
    (part,) = done.parts
    assert (part.rows, part.ok) == (8, 0)


def test_what_should_be_json_is_checked(place: Place) -> None:
    place.source.write_text(lines({"text": '{"a": 1}'}, {"text": "no json"}, {"text": '{"a": 1, "b": 2}'}))
    replica = place.replica(response_format="json_object", sampling={"max_tokens": 2})
    (done,) = do(place, replica)
    rows = written(place, done)
    assert [row["ok"] for row in rows] == [True, False, False]
    assert rows[1]["failure"]["step"] == "parse"
    assert "the response is not JSON (" in rows[1]["failure"]["reason"]
    assert "cut off by max_tokens" in rows[2]["failure"]["reason"]
    (part,) = done.parts
    assert paid_tokens(place.out, part) == done.report.input_tokens + done.report.output_tokens == 8 + 6


def test_replica_reports_what_it_is_and_what_it_did(place: Place) -> None:
    place.write("a b")
    replica = place.replica(sampling={"temperature": 0})
    assert place.report.state == "ready"
    assert place.report.replica.startswith(f"replica-{os.getpid()}-")
    assert (place.report.node, place.report.rows) == ("node-1", 0)
    engine = place.coordinator.engine()
    assert engine is not None
    assert engine.effective_sampling == {"temperature": 0}
    (done,) = do(place, replica)
    assert "temperature" not in repr(done)  # once per process, not with each chunk and each second
    assert "temperature" not in repr(place.report)
    replica.reporter.send()
    assert (place.report.rows, place.report.output_tokens) == (1, 2)
    assert place.report.first_request > 0


def test_failures_are_counted_as_they_are_written(place: Place) -> None:
    """Failures of a process that ends before its report are counted by the next process."""
    place.source.write_text(lines({"text": "wait"}, {"text": None}, {"text": "far too many words to fit"}))
    fields = {"engine": "echo", "engine_args": {"max_model_len": 5}}
    first = place.replica(**fields)

    async def ends_while_it_asks() -> None:
        working = asyncio.ensure_future(work(first))
        await until(lambda: Scripted.asked)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(ends_while_it_asks())
    Scripted.events.clear()
    second = place.replica(**fields)
    meanwhile(second, lambda: Scripted.events, lambda: Scripted.events["wait"].set())
    counted = [(one.report.written, one.report.errors) for one in (first, second)]
    assert counted == [(0, 0), (3, 2)]


def test_what_ends_a_replica_is_on_the_board(place: Place) -> None:
    place.write("a")
    replica = place.replica()
    place.write("another")
    with pytest.raises(StorageError):
        do(place, replica)
    assert place.report.failure == (
        "storage",
        f"source: {place.source} changed while the job ran; run the task again.",
    )


@pytest.mark.parametrize(
    ("codes", "killed"), [({"core": -9}, True), ({"core": -6}, False), ({"core": 1}, False), ({}, False)]
)
def test_exit_status_shows_what_ended_an_engine(codes: dict[str, int], killed: bool) -> None:
    manager = SimpleNamespace(finished_procs=lambda: codes)
    resources = SimpleNamespace(engine_manager=manager)
    assert vllm_compat.was_killed(SimpleNamespace(engine_core=SimpleNamespace(resources=resources))) is killed
    assert not vllm_compat.was_killed(SimpleNamespace())


def test_unknown_nodes_of_gpus_end_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a replica that spans nodes; they are only asked for prices."""
    monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: 1 / 0)
    assert replica._nodes_of_gpus() == []
