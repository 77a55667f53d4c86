# SPDX-License-Identifier: Apache-2.0
"""A warm engine has one holder at a time, and ends when it should; its front end is a real process."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import loading
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process import server
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.warm_engines import actor as module
from airflow_provider_raybatch.job.warm_engines import demand, lease
from airflow_provider_raybatch.job.warm_engines.actor import WarmEngineActor
from airflow_provider_raybatch.job.warm_engines.demand import Bundle, Node, PendingDemand, units
from airflow_provider_raybatch.job.warm_engines.lease import GivenAwayError, Holder
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineState
from tests.support.replicas import eventually
from tests.support.specs import spec

FIRST, SECOND = Holder("actor 1", "process 1"), Holder("actor 2", "process 2")


class Clock:
    """The actor's clock, which a test sets.

    :ivar now: seconds.
    :ivar looks: pauses of the actor's watch so far; it looks between two.
    :ivar last_word: set when the time is over that a holder has to hear of a death.
    :ivar waits_for_last_word: whether the actor waits for that.
    """

    def __init__(self) -> None:
        self.now, self.looks, self.waits_for_last_word = 1000.0, 0, False
        self.last_word = threading.Event()
        self.last_word.set()
        self._of_earlier_tests = set(threading.enumerate())

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        thread = threading.current_thread()
        if seconds == module._DEATH_NOTICE:
            self.waits_for_last_word = True
            assert self.last_word.wait(60)
            return
        self.looks += thread.name == "raybatch-watch" and thread not in self._of_earlier_tests
        time.sleep(seconds)

    def look(self) -> None:
        """Return when the watch has looked twice from now on."""
        enough = self.looks + 3
        eventually(lambda: self.looks >= enough)


class Cluster:
    """What the actor asks of Ray.

    :ivar waits: whether something waits for its GPU.
    :ivar killed: set when the actor has ended itself.
    """

    def __init__(self) -> None:
        self.waits = False
        self.killed = threading.Event()
        self.clock = Clock()
        self.exceptions = ray.exceptions
        self.context = SimpleNamespace(
            current_actor="itself",
            get_assigned_resources=lambda: {"GPU": 1.0, "CPU": 0.0},
            get_node_id=lambda: "node",
            get_actor_name=lambda: "warm-engine",
            get_accelerator_ids=lambda: {"GPU": ["10", "9"]},
        )

    def get_runtime_context(self) -> Any:
        return self.context

    def pending(self) -> tuple[list[PendingDemand], dict[str, Node]]:
        one = [PendingDemand([Bundle(units({"GPU": 1.0}))])]
        return (one if self.waits else []), {"node": Node(units({}))}

    def states(self) -> dict[str, WarmEngineState]:
        return {"warm-engine": WarmEngineState("echo", True, False, 9, 9, "node", {"GPU": 1.0})}

    def kill(self, actor: str) -> None:
        assert actor == "itself"
        self.killed.set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(module, "ray", made)
    monkeypatch.setattr(module, "time", made.clock)
    monkeypatch.setattr(demand, "pending", made.pending)
    monkeypatch.setattr(module, "WarmEngineRegistry", lambda: made)
    monkeypatch.setattr(module, "_CHECK_EVERY", (0.05, 0.1))
    monkeypatch.setattr(module, "_leave", lambda: None)
    monkeypatch.setattr(lease, "SHORTEST_REST", 0.0)
    return made


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[WarmEngineActor]:
    made = WarmEngineActor("echo")
    assert made.take(FIRST)
    assert made.begin(FIRST, {}, of_vllm=False) == ["9", "10"]
    yield made
    processes = [front_end.process for front_end in made._front_ends()]
    made.end(at_once=True)
    assert cluster.killed.wait(60)
    for process in processes:
        process.join(60)
        assert not psutil.pid_exists(process.pid or 0)


def open_echo(
    engine: WarmEngineActor,
    holder: Holder = FIRST,
    identity: str = "echo",
    opens: Callable[[BatchInferenceSpec], Any] = server.open_echo,
) -> int:
    """The process in which it is then."""
    asked = spec(engine="echo")
    engine.prepare(holder, identity)
    engine.send(holder, [pickle.dumps((True, opens, (asked,)))])
    assert answers(engine, holder) == [(0, server.open_echo(asked).info, None)]
    assert engine._front_end is not None
    return engine._front_end.process.pid or 0


def pid_of(engine: WarmEngineActor, holder: Holder) -> int:
    """The process that answers a question."""
    engine.send(holder, [pickle.dumps((False, os.getpid, ()))])
    ((_, pid, _),) = answers(engine, holder)
    return int(pid)


def answers(engine: WarmEngineActor, holder: Holder) -> Any:
    return pickle.loads(eventually(lambda: engine.receive(holder).messages)[0])


def rest(
    engine: WarmEngineActor,
    seconds: float = 60.0,
    opens: Callable[[BatchInferenceSpec], Any] = server.open_echo,
) -> int:
    pid = open_echo(engine, opens=opens)
    engine.give_back(FIRST, seconds, is_open=True)
    eventually(lambda: engine.state().is_free)
    return pid


def taken_over(engine: WarmEngineActor) -> int:
    """Its process, which the second holder has taken and not opened."""
    pid = rest(engine)
    assert engine.take(SECOND)
    return pid


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


def order(**engine_args: Any) -> bytes:
    return pickle.dumps((True, server.open_echo, (spec(engine="echo", engine_args=engine_args),)))


CAN_NOT_START = order(startup_seconds="soon")


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


@pytest.mark.parametrize(
    ("comes_to", "leaves"),
    [
        ("begin", lambda engine, holder: engine.give_back(holder, 60, is_open=False)),
        ("open", lambda engine, holder: engine.give_back(holder, 0, is_open=True)),
        ("begin", lambda engine, holder: engine.open_alone(holder, 60, "echo", CAN_NOT_START)),
        ("renew", lambda engine, holder: engine.open_alone(holder, 60, "echo", CAN_NOT_START)),
        ("renew", lambda engine, holder: engine.give_back(holder, 60, is_open=False)),
    ],
    ids=["never opened", "no time", "can't be opened", "can't be renewed", "may have failed to open"],
)
def test_engine_ends_with_its_use(
    engine: WarmEngineActor, cluster: Cluster, comes_to: str, leaves: Callable[..., None]
) -> None:
    if comes_to == "open":
        open_echo(engine)
    if comes_to == "renew":
        taken_over(engine)
        engine.prepare(SECOND, "echo")
    leaves(engine, SECOND if comes_to == "renew" else FIRST)
    assert cluster.killed.wait(60)


@pytest.mark.parametrize("still_starts", [False, True])
def test_people_end_one_without_a_holder(
    engine: WarmEngineActor, cluster: Cluster, still_starts: bool
) -> None:
    if still_starts:
        engine.open_alone(FIRST, 60, "echo", order(startup_seconds=60))
    else:
        rest(engine)
    assert engine.end_if_free()
    assert not engine.end_if_free()
    assert not engine.take(SECOND)
    assert cluster.killed.wait(60)


def test_engine_that_started_nothing_for_its_holder_ends(cluster: Cluster) -> None:
    made = WarmEngineActor("echo")
    assert made.take(FIRST)
    made.open_alone(FIRST, 60, "echo", order())
    assert cluster.killed.wait(60)


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


def test_engine_without_a_holder_makes_room(engine: WarmEngineActor, cluster: Cluster) -> None:
    cluster.waits = True
    cluster.clock.look()
    assert engine.take(FIRST)  # it is in use, so others wait
    open_echo(engine)
    engine.give_back(FIRST, 60, is_open=True)  # and from here on it may end at any time
    assert cluster.killed.wait(60)


def test_what_it_can_not_look_at_leaves_its_limits_in_force(
    engine: WarmEngineActor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(loading, "steps", fails)
    monkeypatch.setattr(demand, "pending", fails)
    cluster.clock.look()
    rest(engine)
    cluster.clock.now += 60
    assert cluster.killed.wait(60)


def test_engine_ends_with_a_silent_holder(engine: WarmEngineActor, cluster: Cluster) -> None:
    open_echo(engine)
    cluster.clock.now += lease.SILENT + 1
    assert cluster.killed.wait(60)


def test_a_holder_is_not_silent_while_the_engine_is_imported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(of_vllm: bool) -> OwnFrontEnd:
        cluster.clock.now += lease.LONGEST_START
        cluster.clock.look()
        return OwnFrontEnd(of_vllm)

    monkeypatch.setattr(module, "OwnFrontEnd", slowly)
    made = WarmEngineActor("echo")
    made.take(FIRST)
    made.begin(FIRST, {}, of_vllm=False)
    assert made.take(FIRST)
    made.end(at_once=True)
    assert cluster.killed.wait(60)


def test_only_its_holder_can_abandon_it(engine: WarmEngineActor, cluster: Cluster) -> None:
    open_echo(engine)
    engine.abandon(SECOND)
    assert engine.take(FIRST)
    assert engine.state().is_used
    assert not engine.end_if_free()
    engine.abandon(FIRST)
    assert cluster.killed.wait(60)


def test_the_death_of_the_engine_is_told_to_its_holder(engine: WarmEngineActor, cluster: Cluster) -> None:
    cluster.clock.last_word.clear()
    os.kill(open_echo(engine), 9)
    eventually(lambda: cluster.clock.waits_for_last_word)
    with pytest.raises(EngineDeadError, match="exit code -9") as raised:
        engine.receive(FIRST)
    assert raised.value.killed
    assert not cluster.killed.is_set()
    cluster.clock.last_word.set()
    assert cluster.killed.wait(60)


def test_an_engine_that_dies_at_rest_is_not_handed_on(engine: WarmEngineActor, cluster: Cluster) -> None:
    os.kill(rest(engine), 9)
    assert cluster.killed.wait(60)
    assert not engine.take(SECOND)


class Hanging(EchoEngine):
    """Comes to rest, and hangs then."""

    def __init__(self, asked: BatchInferenceSpec) -> None:
        super().__init__(asked)
        self.has_rested = False

    async def ping(self) -> None:
        if self.has_rested:
            await asyncio.Event().wait()
        self.has_rested = True


@pytest.mark.parametrize(
    ("hangs", "identity"), [("the engine", "echo"), ("its front end", "echo"), ("the engine", "other files")]
)
def test_an_engine_that_hangs_at_rest_is_not_handed_on(
    engine: WarmEngineActor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, hangs: str, identity: str
) -> None:
    """Else the next job stands for `no_progress_timeout`.

    One of other files is ended in any case, but if it hangs, its processes end with the actor alone.
    """
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 1.0)
    pid = rest(engine, opens=Hanging if hangs == "the engine" else server.open_echo)
    if hangs == "its front end":
        os.kill(pid, signal.SIGSTOP)
    assert engine.take(SECOND)
    engine.begin(SECOND, {}, of_vllm=False)
    with pytest.raises(EngineDeadError, match="did not answer"):
        engine.prepare(SECOND, identity)
    assert cluster.killed.wait(60)
    eventually(lambda: not psutil.pid_exists(pid))


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


def test_an_end_that_hangs_is_cut_short(
    engine: WarmEngineActor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(OwnFrontEnd, "end", lambda self, is_open: released.wait(60))
    monkeypatch.setattr(module, "_END_SECONDS", 0.5)
    left = threading.Event()
    monkeypatch.setattr(module, "_leave", left.set)
    open_echo(engine)
    engine.give_back(FIRST, 0, is_open=True)
    assert left.wait(60)
    released.set()
    assert cluster.killed.wait(60)
