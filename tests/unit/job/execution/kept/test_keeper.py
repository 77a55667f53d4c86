# SPDX-License-Identifier: Apache-2.0
"""A kept engine has one user at a time, and ends when it should; its front end is a real process."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.job.engine import host
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine.host import Opening
from airflow_provider_raybatch.job.execution.kept import keeper as module
from airflow_provider_raybatch.job.execution.kept.keeper import GivenAwayError, KeptEngine, User
from tests.support.specs import spec

FIRST, SECOND = User("actor 1", "process 1"), User("actor 2", "process 2")


class Cluster:
    """What the actor asks of Ray.

    :ivar waits: whether something waits for its GPU.
    :ivar killed: set when the actor has ended itself.
    """

    def __init__(self) -> None:
        self.waits = False
        self.killed = threading.Event()
        self.context = SimpleNamespace(
            current_actor="itself",
            get_assigned_resources=lambda: {"GPU": 1.0},
            get_node_id=lambda: "node",
        )

    def get_runtime_context(self) -> Any:
        return self.context

    def kill(self, actor: str) -> None:
        assert actor == "itself"
        self.killed.set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(module, "ray", made)
    monkeypatch.setattr(module, "waits_for", lambda resources: made.waits and resources == {"GPU"})
    monkeypatch.setattr(module, "_LOOKS", (0.05, 0.1))
    monkeypatch.setattr(module, "_LAST_WORD", 0.1)
    return made


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[KeptEngine]:
    made = KeptEngine("echo", FIRST)
    made.begin(FIRST, {}, of_vllm=False)
    yield made
    made.end(at_once=True)
    assert cluster.killed.wait(30)
    assert made._front_end is not None
    made._front_end.process.join(30)
    assert not psutil.pid_exists(made._front_end.process.pid or 0)


def open_echo(engine: KeptEngine, user: User = FIRST) -> None:
    asked = spec(engine="echo")
    engine.send(user, [pickle.dumps((Opening("echo"), host.open_echo, (asked,)))])
    assert answers(engine, user) == [(0, host.open_echo(asked).info, None)]


def answers(engine: KeptEngine, user: User) -> Any:
    return pickle.loads(eventually(lambda: engine.receive(user).messages)[0])


def eventually(ask: Callable[[], Any]) -> Any:
    until = time.monotonic() + 30
    while not (found := ask()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def rest(engine: KeptEngine, seconds: float = 60.0) -> None:
    open_echo(engine)
    engine.give_back(FIRST, seconds, is_open=True)
    eventually(lambda: engine.state()["is_free"])


def test_it_has_one_user_at_a_time(engine: KeptEngine) -> None:
    assert engine.take(FIRST)
    assert not engine.take(SECOND)
    rest(engine)
    assert engine.state()["ends_in"] in range(55, 61)
    assert engine.take(SECOND)
    with pytest.raises(GivenAwayError):
        engine.receive(FIRST)
    with pytest.raises(GivenAwayError):
        engine.give_back(FIRST, 60, is_open=True)
    open_echo(engine, SECOND)


def test_an_actor_that_waits_for_a_user_that_has_died_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 0.5)
    waiting = KeptEngine("echo", FIRST)
    assert cluster.killed.wait(30)
    with pytest.raises(GivenAwayError):
        waiting.begin(FIRST, {}, of_vllm=False)


def test_it_ends_at_its_time(engine: KeptEngine, cluster: Cluster) -> None:
    rest(engine, 0.5)
    assert cluster.killed.wait(30)
    assert not engine.take(SECOND)


def test_it_ends_where_no_time_is_given(engine: KeptEngine, cluster: Cluster) -> None:
    open_echo(engine)
    engine.give_back(FIRST, 0, is_open=True)
    assert cluster.killed.wait(30)


def test_an_engine_that_was_never_opened_is_not_kept(engine: KeptEngine, cluster: Cluster) -> None:
    engine.give_back(FIRST, 60, is_open=False)
    assert cluster.killed.wait(30)


def test_it_makes_room_while_it_has_no_user(engine: KeptEngine, cluster: Cluster) -> None:
    cluster.waits = True
    time.sleep(0.5)
    assert engine.take(FIRST)  # it is in use, so others wait
    rest(engine)
    assert cluster.killed.wait(30)


def test_it_ends_with_a_user_that_is_silent(
    engine: KeptEngine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_echo(engine)
    monkeypatch.setattr(module, "SILENT", 0.5)
    assert cluster.killed.wait(30)


def test_a_user_is_not_silent_while_the_engine_is_imported(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(of_vllm: bool) -> OwnFrontEnd:
        time.sleep(2)
        return OwnFrontEnd(of_vllm)

    monkeypatch.setattr(module, "OwnFrontEnd", slowly)
    monkeypatch.setattr(module, "SILENT", 1.0)
    made = KeptEngine("echo", FIRST)
    made.begin(FIRST, {}, of_vllm=False)
    assert made.take(FIRST)
    made.end(at_once=True)
    assert cluster.killed.wait(30)


def test_it_ends_when_its_user_has_died_and_starts_again(
    engine: KeptEngine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT", 1000.0)
    open_echo(engine)
    assert not engine.take(User(FIRST.actor, "process 3"))
    assert cluster.killed.wait(30)


def test_the_death_of_the_engine_is_told_to_its_user(engine: KeptEngine, cluster: Cluster) -> None:
    open_echo(engine)
    assert engine._front_end is not None
    os.kill(engine._front_end.process.pid or 0, 9)
    with pytest.raises(EngineDeadError, match="exit code -9") as raised:
        eventually(lambda: engine.receive(FIRST).messages)
    assert raised.value.killed
    assert cluster.killed.wait(30)
