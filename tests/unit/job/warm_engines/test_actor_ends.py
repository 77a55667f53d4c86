# SPDX-License-Identifier: Apache-2.0
"""A warm engine ends when it should: with its use, its holder or its front end, or in favour of others."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import psutil
import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine_process import server
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.warm_engines import actor as module
from airflow_provider_raybatch.job.warm_engines import demand, lease, source
from airflow_provider_raybatch.job.warm_engines.actor import WarmEngineActor
from tests.support.replicas import eventually
from tests.support.warm_actor import FIRST, SECOND, Cluster, open_echo, order, rest, taken_over

CAN_NOT_START = order(startup_seconds="soon")


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

    monkeypatch.setattr(source, "progress", fails)
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
