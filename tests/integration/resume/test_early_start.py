# SPDX-License-Identifier: Apache-2.0
"""Replicas start while the driver looks up rows, and end where nothing is left for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.phases import reusing
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.run import replicas
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.work import in_sequence
from tests.integration.end_to_end.waiting import wait_for
from tests.support.ray_processes import ray_processes
from tests.support.repeated_task import RepeatedTask, answers

TEXTS = [f"text {number}" for number in range(40)]


class Driver:
    """One that looks up rows when its replicas allow it.

    :ivar meanwhile: called before that.
    :ivar question: a function that a replica is to call, and its arguments.
    """

    def __init__(self) -> None:
        self.question: tuple[Any, ...] | None = None
        self.meanwhile: Callable[[], object] = self.ready
        self._coordinator: Any = None

    def early(self, launch: Launch, *arguments: Any) -> None:
        early(launch, *arguments)
        assert launch._replicas is not None
        self._coordinator = launch._replicas.coordinator
        if self.question is not None:
            launch.ask(*self.question)

    def keys(self, function: Any, groups: Sequence[Any], job: Any) -> Iterator[Any]:
        self.meanwhile()
        return iter(list(in_sequence(function, groups, job)))

    def ready(self, but: Sequence[str] = ()) -> ReplicaProgress:
        """Wait for a replica whose engine is ready.

        :param but: other processes.
        """

        def found() -> ReplicaProgress | None:
            reports: list[ReplicaProgress] = ray.get(self._coordinator.snapshot.remote())
            ready = (one for one in reports if one.state == "ready" and one.replica not in but)
            return next(ready, None)

        return wait_for("a ready engine", found, 120, pause=0.1)


early = Launch.early


@pytest.fixture
def checks(task: RepeatedTask, monkeypatch: pytest.MonkeyPatch) -> Driver:
    task.input(TEXTS)
    made = Driver()
    monkeypatch.setattr(replicas, "_SOON", 120.0)  # a busy host takes long to start an actor
    monkeypatch.setattr(Launch, "early", lambda launch, *arguments: made.early(launch, *arguments))
    monkeypatch.setattr(reusing, "keys_over_the_cluster", made.keys)
    return made


def has_replicas() -> bool:
    """Return whether there are any, or the coordinator that they ask."""
    commands = ray_processes().values()
    return any("Replica" in command or "ray::Coordinator" in command for command in commands)


def wait_until_they_are_gone() -> None:
    wait_for("no replica", lambda: not has_replicas(), 60, pause=0.1)


def test_the_engine_is_ready_before_the_rows_are_known(
    task: RepeatedTask, checks: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are not waited for again, as where one of several is lost meanwhile; others do its work."""
    store = {"reuse": str(task.folder / "store")}
    with monkeypatch.context() as patch:

        def lose() -> None:
            checks.ready()
            patch.setattr(cluster_view, "_nodes", lambda: ())

        checks.meanwhile = lose
        manifest = task.run(**store)
    assert len(answers(manifest)) == task.asked(manifest) == len(TEXTS)
    phases = manifest.timing.phases
    assert phases["replica"] == phases["engine"] == 0 < phases["earlier"]
    wait_until_they_are_gone()
    # A job without work leaves no replica, either.
    checks.meanwhile = checks.ready
    again = task.run(run_id="r2", **store)
    assert (again.counts.reused, again.replicas) == (len(TEXTS), [])
    assert task.asked_in_all() == len(TEXTS)
    wait_until_they_are_gone()


@pytest.mark.thorough("an early start that is refused; others run always")
def test_a_job_that_is_refused_leaves_no_replica(task: RepeatedTask, checks: Driver) -> None:
    def refuse() -> None:
        checks.ready()
        assert has_replicas()
        raise RaybatchError("reuse: it is refused.", FailureClass.USER_ERROR)

    checks.meanwhile = refuse
    assert task.refused(FailureClass.USER_ERROR, reuse=str(task.folder / "store")) == "reuse: it is refused."
    wait_until_they_are_gone()
    assert task.asked_in_all() == 0


def test_a_replica_that_is_killed_meanwhile_starts_again(task: RepeatedTask, checks: Driver) -> None:
    def kill() -> None:
        first = checks.ready()
        psutil.Process(int(first.replica.split("-")[1])).send_signal(signal.SIGKILL)
        checks.ready(but=[first.replica])

    checks.meanwhile = kill
    manifest = task.run(reuse=str(task.folder / "store"))
    assert len(answers(manifest)) == task.asked_in_all() == len(TEXTS)
    assert sorted(replica.rows for replica in manifest.replicas) == [0, len(TEXTS)]


def refuses_after_a_death(file: Path) -> None:
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    raise RaybatchError("model: it is refused.", FailureClass.USER_ERROR)


def test_a_replica_is_asked_again_if_one_dies_of_a_question(task: RepeatedTask, checks: Driver) -> None:
    """What the second one refuses ends the job."""
    checks.question = (refuses_after_a_death, task.folder / "died")
    assert task.refused(FailureClass.USER_ERROR) == "model: it is refused."
    assert (task.folder / "died").exists()
    wait_until_they_are_gone()
