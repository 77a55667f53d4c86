# SPDX-License-Identifier: Apache-2.0
"""What a pool says of engines that replicas are about to get; on a cluster that is the test's.

How it finds, makes and ends them on a real Ray is shown by ``tests/integration/resume/test_warm_engines.py``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.engine_process.proxy import identity
from airflow_provider_raybatch.job.engine_process.server import open_echo
from airflow_provider_raybatch.job.warm_engines import pool as module
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.pool import WarmEnginePool
from airflow_provider_raybatch.job.warm_engines.registry import EngineKey, WarmEngineState
from airflow_provider_raybatch.job.work import CheckedModel
from tests.support.replicas import eventually
from tests.support.specs import spec

Pools = Callable[..., WarmEnginePool]
FIRST, SECOND = Holder("actor 1", "process 1"), Holder("actor 2", "process 2")


@dataclass
class Cluster:
    """Warm engines by name, and who has them."""

    holders: dict[str, Holder | None] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    reserved_for: str = ""
    opened: dict[str, Any] = field(default_factory=dict)
    """With which identity and order each is opened that no one waits for."""

    def states(self) -> dict[str, WarmEngineState | None]:
        return {
            name: WarmEngineState("echo", holder is None, False, 0, 60, "node", {}, self.reserved_for)
            for name, holder in self.holders.items()
        }

    def actor(self, name: str) -> Any:
        def take(holder: Holder, maker: str) -> bool:
            self.holders[name] = self.holders[name] or holder
            return self.holders[name] == holder

        def calls(what: str) -> Any:
            return SimpleNamespace(remote=lambda holder: self.calls.append((what, name)))

        def open_alone(holder: Holder, seconds: float, identity: str, order: bytes) -> None:
            self.opened[name] = identity, pickle.loads(order)

        return SimpleNamespace(
            take=SimpleNamespace(remote=take),
            abandon=calls("abandon"),
            decline=calls("decline"),
            open_alone=SimpleNamespace(remote=open_alone),
        )

    def get(self, answer: Any, timeout: float) -> Any:
        return answer

    def wait(self, answers: Any, num_returns: int, timeout: float) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(module, "WarmEngineRegistry", lambda key: made)
    monkeypatch.setattr(
        module, "ray", SimpleNamespace(get=made.get, wait=made.wait, exceptions=ray.exceptions)
    )
    monkeypatch.setattr(WarmEnginePool, "_make", lambda self, holder, node: None)
    return made


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Makes pools, which close before the cluster goes."""
    made: list[WarmEnginePool] = []

    def make(most: int, seconds: float = 60.0) -> WarmEnginePool:
        made.append(WarmEnginePool(EngineKey("key", "echo", "echo", 1, None, seconds), "maker", most))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_idle_engines_count_until_their_replicas_join(pool: Pools, cluster: Cluster) -> None:
    """Else the first one takes all rows: it is ready at once, and the next one's process a second later."""
    cluster.holders = {"one": None, "two": None, "three": None}
    asked = pool(most=2)
    eventually(lambda: asked.engine_for(FIRST, "node"))
    assert asked.coming == 2
    asked.joined(FIRST.process)
    assert asked.coming == 1
    assert asked.engine_for(SECOND, "node") is None
    assert asked.coming == 1
    eventually(lambda: asked.engine_for(SECOND, "node"))
    assert asked.coming == 1
    asked.joined(SECOND.process)
    assert asked.coming == 0


def test_replicas_that_do_not_come_are_waited_for_a_while(
    pool: Pools, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.holders = {"one": None, "two": None}
    asked = pool(most=2)
    eventually(lambda: asked.engine_for(FIRST, "node"))
    monkeypatch.setattr(module, "_COMING_SECONDS", 0.0)
    assert asked.coming == 0


@pytest.mark.parametrize(("has_heard", "call"), [(False, "decline"), (True, "abandon")])
def test_only_an_engine_that_its_dead_replica_knew_is_ended(
    pool: Pools, cluster: Cluster, has_heard: bool, call: str
) -> None:
    cluster.holders = {"one": None}
    asked = pool(most=1)
    assert asked.engine_for(FIRST, "node") is None
    eventually(lambda: asked.has_given)
    if has_heard:
        assert asked.engine_for(FIRST, "node")
    asked.gone(FIRST.process)
    assert cluster.calls == [(call, "one")]


@pytest.mark.parametrize(
    ("has_heard", "seconds", "opens"), [(True, 60, True), (False, 60, False), (True, 0, False)]
)
def test_one_that_still_starts_is_opened_for_the_next_job(
    pool: Pools, cluster: Cluster, has_heard: bool, seconds: float, opens: bool
) -> None:
    """Not one that no replica has touched, nor where none is to be kept."""
    cluster.holders = {"one": None}
    asked = pool(most=1, seconds=seconds)
    assert asked.engine_for(FIRST, "node") is None
    eventually(lambda: asked.has_given)
    if has_heard:
        assert asked.engine_for(FIRST, "node")
    model = CheckedModel(spec(engine="echo"), "files")
    asked.close(model)
    order = identity(model.spec, "files"), (True, open_echo, (model.spec,))
    assert cluster.opened == ({"one": order} if opens else {})
    assert asked.has_given is not opens


def test_a_new_one_of_another_job_is_left_alone(pool: Pools, cluster: Cluster) -> None:
    cluster.holders, cluster.reserved_for = {"one": None}, "another job"
    asked = pool(most=1)
    assert asked.engine_for(FIRST, "node") is None
    eventually(lambda: asked._searched)
    assert asked.engine_for(FIRST, "node") is None
    assert asked.coming == 0


def test_a_look_that_fails_is_repeated(
    pool: Pools, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was: the replicas of the job would wait for ever."""
    looks = iter([ValueError("an engine of another version")])

    def states() -> dict[str, WarmEngineState | None]:
        for error in looks:
            raise error
        return Cluster.states(cluster)

    cluster.holders = {"one": None}
    monkeypatch.setattr(cluster, "states", states)
    asked = pool(most=1)
    assert eventually(lambda: asked.engine_for(FIRST, "node"))


class FullCluster:
    """Without room, so that what is made waits, and belongs to no job.

    :ivar waiting: names of the actors that wait for room.
    """

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def states(self) -> dict[str, WarmEngineState | None]:
        return dict.fromkeys(self.waiting)

    def remote(self, kind: type) -> Any:
        return self

    def options(self, name: str, **_: Any) -> Any:
        def make(title: str, maker: str) -> str:
            self.waiting.add(name)
            return name

        return SimpleNamespace(remote=make)

    def kill(self, actor: str) -> None:
        self.waiting.discard(actor)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> FullCluster:
    made = FullCluster()
    monkeypatch.setattr(module, "WarmEngineRegistry", lambda key: made)
    monkeypatch.setattr(module, "ray", made)
    return made


@pytest.mark.parametrize(
    ("ends", "waiting"),
    [
        pytest.param(lambda pool: pool.close(CheckedModel(spec(engine="echo"))), 0, id="the job"),
        pytest.param(lambda pool: pool.gone(FIRST.process), 1, id="a waiting replica"),
    ],
)
def test_what_waits_for_room_ends_with_what_it_is_for(
    pool: Pools, full: FullCluster, ends: Callable[[WarmEnginePool], None], waiting: int
) -> None:
    """Ray would keep it, and load a model with no one to use it when there is room."""
    asked = pool(most=2)
    for holder in (FIRST, SECOND):
        assert asked.engine_for(holder, "node") is None
    eventually(lambda: len(full.waiting) == 2)
    ends(asked)
    eventually(lambda: len(full.waiting) == waiting)
