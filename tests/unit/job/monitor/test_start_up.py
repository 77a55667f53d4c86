# SPDX-License-Identifier: Apache-2.0
"""The phases of a start-up follow each other and add up to the seconds until the first request."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.job.monitor import start_up as module
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.monitor.start_up import StartUp, in_words


@pytest.fixture
def start_up(monkeypatch: pytest.MonkeyPatch) -> StartUp:
    """One whose phases end at these seconds."""
    times: Iterator[float] = iter([1000.0, 1000.25, 1001.25, 1016.25, 1018.25])
    monkeypatch.setattr(module.time, "time", lambda: next(times))
    made = StartUp()
    for phase in ("source", "nodes", "model", "nodes"):
        made.ended(phase)
    return made


def replica(**fields: float) -> ReplicaProgress:
    return ReplicaProgress(replica="one", node="node", **fields)  # type: ignore[arg-type]


def test_a_phase_that_comes_twice_has_both(start_up: StartUp) -> None:
    assert start_up.phases() == {"source": 0.25, "nodes": 3.0, "model": 15.0}
    assert start_up.phases([replica(started=1020.0)]) == start_up.phases()
    assert start_up.seconds == 18.25


@pytest.mark.parametrize(
    ("started", "imported", "first_request", "seconds"),
    [
        (1021.25, 1033.25, 1052.0, {"replica": 3.0, "import": 12.0, "engine": 18.0, "rows": 0.75}),
        # What is over before the driver's phases takes no time.
        (1001.0, 1013.0, 1032.0, {"replica": 0.0, "import": 0.0, "engine": 12.75, "rows": 1.0}),
    ],
)
def test_the_replica_with_the_first_request_counts(
    start_up: StartUp, started: float, imported: float, first_request: float, seconds: dict[str, float]
) -> None:
    first = replica(started=started, startup_seconds=30.0, imported=imported, first_request=first_request)
    later = replica(started=1019.0, startup_seconds=60.0, first_request=1080.0)
    phases = start_up.phases([later, first, replica(started=1019.0)])
    assert dict(list(phases.items())[3:]) == seconds
    assert sum(phases.values()) == first_request - start_up.began


def test_a_long_step_says_each_half_minute_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    made, said = StartUp(), []
    ends = {1010: "source", 1020: "nodes", 1115: "model", 1200: "earlier", 1240: "nodes"}
    for second in range(1000, 1400):
        now = float(second)
        if second in ends:
            made.ended(ends[second])
        if second == 1200:
            made.begins("nodes")
        if second == 1300:
            made.ended("claim")
        if (phase := made.still(now)) is not None:
            said.append((second, phase.message))
    assert said == [
        (1050, "still checking the model (30 s)"),
        (1080, "still checking the model (60 s)"),
        (1110, "still checking the model (90 s)"),
        (1145, "still looking for rows that are done (30 s)"),
        (1175, "still looking for rows that are done (60 s)"),
        (1230, "still waiting for a node (30 s)"),
        (1270, "still claiming the destination (30 s)"),
    ]


def test_a_step_is_told_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(0, 40)
    monkeypatch.setattr(module.time, "time", lambda: float(next(times)))
    told, is_told = list[str](), threading.Event()

    def emit(phase: Phase) -> None:
        told.append(phase.message)
        is_told.set()

    with StartUp().saying(emit, look=0.001):
        assert is_told.wait(60)
    assert told[0] == "still reading the source (40 s)"
    for thread in threading.enumerate():
        if thread.name == "raybatch-start-up":
            thread.join(60)
            assert not thread.is_alive()


def test_a_processor_of_ray_has_no_process_of_ours(start_up: StartUp) -> None:
    assert start_up.phases([replica(first_request=1050.25)])["engine"] == 32.0


def test_the_log_names_what_takes_long(start_up: StartUp) -> None:
    assert in_words(start_up.phases()) == "18.2 s (nodes 3.0 s, model 15.0 s)"
    assert in_words({"source": 0.1}) == "0.1 s"
