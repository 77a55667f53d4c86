# SPDX-License-Identifier: Apache-2.0
"""The actor of a warm engine in this process; its front end is a real process."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine_process import server
from airflow_provider_raybatch.job.warm_engines import actor as module
from airflow_provider_raybatch.job.warm_engines import demand, lease
from airflow_provider_raybatch.job.warm_engines.actor import WarmEngineActor
from airflow_provider_raybatch.job.warm_engines.demand import Bundle, Node, PendingDemand, units
from airflow_provider_raybatch.job.warm_engines.lease import Holder
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
    assert made.begin(FIRST, {}, of_vllm=False)[0] == ["9", "10"]
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


def answers(engine: WarmEngineActor, holder: Holder) -> Any:
    return pickle.loads(eventually(lambda: engine.receive(holder).messages)[0])


def rest(engine: WarmEngineActor, opens: Callable[[BatchInferenceSpec], Any] = server.open_echo) -> int:
    """Its process, which its first holder has opened and given back for 60 s."""
    pid = open_echo(engine, opens=opens)
    engine.give_back(FIRST, 60, is_open=True)
    eventually(lambda: engine.state().is_free)
    return pid


def taken_over(engine: WarmEngineActor) -> int:
    """Its process, which the second holder has taken and not opened."""
    pid = rest(engine)
    assert engine.take(SECOND)
    return pid


def order(**engine_args: Any) -> bytes:
    return pickle.dumps((True, server.open_echo, (spec(engine="echo", engine_args=engine_args),)))
