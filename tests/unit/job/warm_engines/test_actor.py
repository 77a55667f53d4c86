# SPDX-License-Identifier: Apache-2.0
"""A warm engine has one holder at a time, and is handed on as it is."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.warm_engines.actor import WarmEngineActor
from airflow_provider_raybatch.job.warm_engines.lease import GivenAwayError, Holder
from tests.support.replicas import eventually
from tests.support.warm_actor import FIRST, SECOND, answers, open_echo, order, rest, taken_over


def pid_of(engine: WarmEngineActor, holder: Holder) -> int:
    """The process that answers a question."""
    engine.send(holder, [pickle.dumps((False, os.getpid, ()))])
    ((_, pid, _),) = answers(engine, holder)
    return int(pid)


def test_the_next_holder_has_the_same_engine(engine: WarmEngineActor) -> None:
    assert not engine.take(SECOND)
    pid = rest(engine)
    assert engine.state().ends_in == 60
    assert engine.take(SECOND)
    engine.begin(SECOND, {}, of_vllm=False)
    with pytest.raises(GivenAwayError):
        engine.give_back(FIRST, 60, is_open=True)
    assert open_echo(engine, SECOND) == pid


def test_an_engine_of_other_files_is_ended_with_its_process(engine: WarmEngineActor) -> None:
    pid = taken_over(engine)
    assert open_echo(engine, SECOND, identity="other files") != pid
    eventually(lambda: not psutil.pid_exists(pid))


def test_questions_do_not_go_to_the_engine_that_rests(engine: WarmEngineActor) -> None:
    """VLLM's functions remember files that they have read."""
    pid = taken_over(engine)
    asked = pid_of(engine, SECOND)
    assert asked != pid
    assert open_echo(engine, SECOND) == pid
    eventually(lambda: not psutil.pid_exists(asked))


@pytest.mark.parametrize("is_held", [False, True])
def test_jobs_ask_beside_an_engine_that_rests(engine: WarmEngineActor, is_held: bool) -> None:
    """In a process of its own, so that neither the engine nor its holder's answers have a part in it."""
    pid = taken_over(engine) if is_held else rest(engine)
    ends_in = engine.state().ends_in
    asked = [engine.ask(60.0, os.getpid) for _ in range(2)]
    assert len({pid, os.getpid(), *(made for made, _ in filter(None, asked))}) == 4
    made, error = engine.ask(60.0, int, "four") or (None, None)
    assert (made, str(error)) == (None, "invalid literal for int() with base 10: 'four'")
    assert not any(psutil.pid_exists(made) for made, _ in filter(None, asked))
    assert (engine.state().is_free, engine.state().ends_in) == (not is_held, ends_in)
    assert engine.take(SECOND)
    assert pid_of(engine, SECOND) != pid
    assert open_echo(engine, SECOND) == pid


@pytest.mark.parametrize(
    ("seconds", "function", "arguments"), [(0.5, time.sleep, (600,)), (60.0, os._exit, (3,))]
)
def test_answer_that_is_late_or_lost_leaves_the_engine(
    engine: WarmEngineActor, seconds: float, function: Callable[..., None], arguments: tuple[int]
) -> None:
    pid = rest(engine)
    with pytest.raises(EngineDeadError):
        engine.ask(seconds, function, *arguments)
    assert engine.ask(60.0, len, "four") == (4, None)
    assert engine.take(SECOND)
    assert open_echo(engine, SECOND) == pid


def test_calls_beside_an_engine_come_one_at_a_time(engine: WarmEngineActor, tmp_path: Path) -> None:
    rest(engine)
    os.mkfifo(tmp_path / "waits")
    with ThreadPoolExecutor(1) as other:
        first = other.submit(engine.ask, 60.0, os.open, tmp_path / "waits", os.O_RDONLY)
        eventually(engine._asking.locked)
        assert engine.ask(60.0, len, "four") is None
        os.close(os.open(tmp_path / "waits", os.O_WRONLY))  # opens both ends
        assert first.result(60)
    assert engine.ask(60.0, len, "four") == (4, None)


@pytest.mark.parametrize(
    "leaves",
    [
        lambda engine: engine.give_back(SECOND, 60, is_open=False),
        lambda engine: engine.open_alone(SECOND, 60, "other files", order()),
    ],
    ids=["given back", "opened for the next"],
)
def test_who_only_asked_leaves_the_engine_to_the_next(
    engine: WarmEngineActor, leaves: Callable[[WarmEngineActor], None]
) -> None:
    pid = taken_over(engine)
    pid_of(engine, SECOND)
    leaves(engine)
    eventually(lambda: engine.state().is_free)
    assert engine.take(FIRST)
    assert open_echo(engine) == pid


def test_what_comes_after_the_return_reaches_no_one(engine: WarmEngineActor) -> None:
    open_echo(engine)
    late = [pickle.dumps([(1, "tokens_in_flight", pickle.dumps(None))])]
    engine.give_back(FIRST, 60, is_open=True)
    with pytest.raises(GivenAwayError):
        engine.send(FIRST, late)
    eventually(lambda: engine.state().is_free)
    assert engine.take(SECOND)
    assert engine.receive(SECOND).messages == []


@pytest.mark.parametrize("comes_to", ["begin", "ask", "prepare", "open"])
def test_engine_is_opened_though_its_holder_has_no_time_to(engine: WarmEngineActor, comes_to: str) -> None:
    if comes_to == "ask":
        engine.send(FIRST, [pickle.dumps((False, time.sleep, (0.2,)))])
    if comes_to in {"prepare", "open"}:
        engine.prepare(FIRST, "echo")
    if comes_to == "open":
        engine.send(FIRST, [order(startup_seconds=0.2)])
    engine.open_alone(FIRST, 60, "echo", order(startup_seconds=0.2))
    assert not engine.take(SECOND)
    for call in (
        engine.receive,
        lambda holder: engine.send(holder, []),
        lambda holder: engine.prepare(holder, ""),
    ):
        with pytest.raises(GivenAwayError):
            call(FIRST)
    eventually(lambda: engine.state().is_free)
    assert engine.state().ends_in == 60
    assert engine._idle is not None
    pid = engine._idle.process.pid
    assert engine.take(SECOND)
    engine.begin(SECOND, {}, of_vllm=False)
    assert open_echo(engine, SECOND) == pid


def test_what_the_holder_still_waits_for_comes_first(
    engine: WarmEngineActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of other files ends for half a minute, say, before the next one's process starts."""
    taken_over(engine)
    has_begun, may_end = threading.Event(), threading.Event()
    end = OwnFrontEnd.end

    def slowly(self: OwnFrontEnd, is_open: bool) -> None:
        has_begun.set()
        may_end.wait(60)
        end(self, is_open)

    monkeypatch.setattr(OwnFrontEnd, "end", slowly)
    preparing = threading.Thread(target=engine.prepare, args=(SECOND, "other files"))
    preparing.start()
    assert has_begun.wait(60)
    engine.open_alone(SECOND, 60, "other files", order())
    may_end.set()
    preparing.join(60)
    eventually(lambda: engine.state().is_free)
    assert engine.take(FIRST)
    assert open_echo(engine, FIRST, identity="other files")


def test_who_leaves_while_it_is_asked_does_not_get_it(engine: WarmEngineActor) -> None:
    pid = taken_over(engine)
    psutil.Process(pid).suspend()
    preparing = ThreadPoolExecutor(1).submit(engine.prepare, SECOND, "echo")
    eventually(lambda: engine._preparing.locked())
    engine.give_back(SECOND, 60, is_open=False)
    psutil.Process(pid).resume()
    with pytest.raises(GivenAwayError):
        preparing.result(60)
    assert engine.take(FIRST)
    assert open_echo(engine) == pid
