# SPDX-License-Identifier: Apache-2.0
"""A replica that waits for a warm engine, and opens it; its actor is in this process."""

from __future__ import annotations

import pickle
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.monitor.money import HeldGpus
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress, Reporter
from airflow_provider_raybatch.job.replica import replica as replica_module
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.warm_engines import front_end
from airflow_provider_raybatch.job.warm_engines.front_end import Heard
from airflow_provider_raybatch.job.warm_engines.lease import Holder
from airflow_provider_raybatch.job.warm_engines.registry import EngineKey
from airflow_provider_raybatch.job.warm_engines.warm_source import WarmEngineSource
from airflow_provider_raybatch.job.work import CheckedModel
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.replicas import Handle, in_no_actor
from tests.support.specs import submitted

HOUR = 3600.0


class FakeActor:
    """Has an engine, or makes another one, as its identity says.

    :ivar engines: identities of those that it has made.
    """

    def __init__(self) -> None:
        self.engines: list[str] = []
        self._answers: dict[Holder, queue.SimpleQueue[bytes]] = {}

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"_{name}"))

    def _begin(self, holder: Holder, environment: Any, of_vllm: bool) -> tuple[list[str], str]:
        self._answers[holder] = queue.SimpleQueue()
        return ["5", "6"], "node"

    def _prepare(self, holder: Holder, identity: str) -> None:
        if self.engines[-1:] != [identity]:
            self.engines.append(identity)

    def _send(self, holder: Holder, messages: list[bytes]) -> None:
        for message in map(pickle.loads, messages):
            if isinstance(message, tuple):
                self._answers[holder].put(
                    pickle.dumps([(0, EngineInfo(sizes={"made": len(self.engines)}), None)])
                )

    def _receive(self, holder: Holder) -> Heard:
        try:
            return Heard([self._answers[holder].get(timeout=0.01)], 0, None)
        except queue.Empty:
            return Heard([], 0, None)

    def _give_back(self, holder: Holder, seconds: float, is_open: bool) -> None:
        pass


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(LocalFolder(str(tmp_path / "out")))


@pytest.fixture
def start(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Replica]]:
    """Start a replica's process.

    Its arguments are what it hears when it asks for an engine, the digest of the model's files, and who is
    told its report then.
    """
    in_no_actor(monkeypatch)
    monkeypatch.setattr(ray, "get", lambda reference, timeout=None: reference)
    monkeypatch.setattr(Reporter, "_run", lambda *_: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(replica_module, "_POLL", 0.001)
    monkeypatch.setattr(front_end, "_HEARTBEAT", 0.01)
    asked = submitted(engine="echo", max_restarts=9)
    started: list[Replica] = []

    def make(actors: list[Any], files: str = "", sees: Callable[[Any], None] = lambda _: None) -> Replica:
        job: Any = SimpleNamespace(spec=asked)
        plan: Any = None
        handle: Any = Handle(coordinator, job, plan)
        answers = iter(actors)

        def engine_for(holder: Holder, node: str) -> Any:
            sees(report_of(coordinator, holder.process))
            return next(answers)

        handle.engine_for = SimpleNamespace(remote=engine_for)
        handle.model = SimpleNamespace(remote=lambda process: CheckedModel(asked, files))
        source = WarmEngineSource(EngineKey("digest", "echo", "echo", 1, None, 60.0), most=1)
        started.append(Replica(asked, {}, handle, False, source))
        return started[-1]

    yield make
    for one in started:
        one.engine.close()
    for thread in threading.enumerate():
        if thread.name in {"raybatch-warm-engine", "raybatch-engine"}:
            thread.join(10)


def report_of(coordinator: Coordinator, process: str) -> ReplicaProgress:
    return next(one for one in coordinator.snapshot() if one.replica == process)


def hours(report: ReplicaProgress) -> float:
    """Return the GPU hours that a replica of two GPUs counts an hour after this is its report."""
    held = HeldGpus(2, 0.0)
    held.look([replace(report, seen=report.seen + HOUR)], report.seen + HOUR)
    return round(sum(held.seconds.values()) / HOUR, 2)


def test_a_replica_is_billed_from_when_it_has_an_engine(
    coordinator: Coordinator, start: Callable[..., Replica]
) -> None:
    reports: list[ReplicaProgress] = []
    replica = start([None, None, FakeActor()], sees=reports.append)
    assert [hours(one) for one in reports] == [0, 0, 0]
    now = report_of(coordinator, replica.process)
    assert hours(now) == 2
    assert now.started >= reports[-1].seen  # nor does its start count what it waited
    assert (now.gpus, now.nodes) == (["5", "6"], ["node", "node"])


def test_an_engine_of_other_files_is_another_one(start: Callable[..., Replica]) -> None:
    """The model's name is the same: its files were replaced between two jobs."""
    actor = FakeActor()
    made = [start([actor], files).engine.info.sizes["made"] for files in ("old", "old", "new", "old")]
    assert made == [1, 1, 2, 3]
