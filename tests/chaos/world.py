# SPDX-License-Identifier: Apache-2.0
"""One Airflow and one Ray cluster, shared by several runs at once, and all in them that can be killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

from ..integration.end_to_end.ray_jobs import RayJobs
from ..integration.end_to_end.rest import Task
from ..integration.end_to_end.stack import INTERVALS, AirflowStack
from .cluster import ChaosCluster, kill
from .plan import MODES

DAGS = Path(__file__).parent / "dags"
DAG_IDS = (
    *(f"{name}_{mode}" for name in ("chaos", "stop", "timeout", "execution_timeout") for mode in MODES),
    "bad_trigger",
)
BOUND = 90.0
"""Seconds that the runs with a bound may take: enough to finish some rows on a busy machine."""
_DRIVER = "airflow_provider_raybatch.job"
_OUTAGE = 3.0
"""Seconds between the loss of a node or head and the start of its replacement."""
_LOOK = 0.2
_SILENCE = (httpx.HTTPError, AssertionError, ValueError, LookupError, TypeError)
"""What a cluster that is away or busy makes of a question."""


@dataclass
class Live:
    """A run that is under way.

    :param hits: what was killed while it was, by kind; its own kill included.
    :param replicas_lost: how many of its replicas the kills took with them.
    """

    task: Task
    replicas: int
    hits: list[str] = field(default_factory=list)
    replicas_lost: int = 0
    submissions: set[tuple[str, int]] = field(default_factory=set)


class World:
    """A context manager. Kills happen one at a time; the runs go on meanwhile.

    :param cpus: of each worker node, as Ray counts them.
    :param lowered: whether Airflow and the operators look more often than by default.
    """

    def __init__(self, cpus: int, lowered: bool = True) -> None:
        self._cpus = cpus
        self.lowered = lowered
        self._exit = ExitStack()
        self._kills = threading.Lock()
        self.live: list[Live] = []

    def __enter__(self) -> World:
        os.environ["CHAOS_BOUND_SECONDS"] = str(BOUND)
        os.environ["CHAOS_POLL_INTERVAL"] = "1" if self.lowered else "10"
        # Blocking tasks hold a slot each as long as they run.
        settings = {**(INTERVALS if self.lowered else {}), "CORE__PARALLELISM": "12"}
        try:
            self.cluster = self._exit.enter_context(ChaosCluster(cpus=self._cpus))
            self.airflow = self._exit.enter_context(AirflowStack({"chaos": DAGS}, DAG_IDS, settings))
            self.jobs = RayJobs(self.cluster.url)
            self._exit.callback(self.jobs.close)
            api = self.airflow.api
            api.connection("ray_default", "ray", host="127.0.0.1", port=self.cluster.port)
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def kill(
        self, live: Live, kind: str, with_family: bool, choice: float, ended: Callable[[], bool]
    ) -> bool:
        """Kill the first process of this kind that there is from now on.

        :param choice: which of several, 0 to 1.
        :param ended: whether the run is over, and there is nothing left to kill.
        :return: whether there was one.
        """
        find = {
            "worker": lambda: self._worker(live, with_family),
            "driver": lambda: self._driver(live),
            "engine": lambda: self._engine(live, choice),
        }.get(kind)
        while not ended():
            with self._kills:
                if find is None:
                    self._kill_shared(kind, with_family, choice)
                    return True
                victims = find()
                if victims:
                    live.hits.append(kind)
                    live.replicas_lost += {"worker": 0, "driver": self._alive(live), "engine": 1}[kind]
                    kill(victims)
                    return True
            time.sleep(_LOOK)
        return False

    def jobs_of(self, live: Live) -> list[dict[str, Any]]:
        """The run's jobs as the cluster knows them now; none while it is away. Remembers them all."""
        with suppress(httpx.HTTPError, AssertionError, ValueError):
            found = self.jobs.of(live.task)
            live.submissions |= {(job["submission_id"], job["start_time"]) for job in found}
            return found
        return []

    def replicas_of(self, live: Live) -> list[int]:
        """Process ids of the living replicas of a run."""
        return [pid for job in self.jobs_of(live) for pid in self.replicas_of_job(job["job_id"])]

    def replicas_of_job(self, job_id: str | None) -> list[int]:
        """Process ids of the living replicas of a job."""
        return [actor["pid"] for actor in self._actors() if actor["job_id"] == job_id]

    def _alive(self, live: Live) -> int:
        """How many replicas a run has now; all that it may have where the cluster doesn't tell."""
        try:
            self._ask_for_actors()
        except _SILENCE:
            return live.replicas
        return len(self.replicas_of(live))

    def _kill_shared(self, kind: str, with_family: bool, choice: float) -> None:
        if kind == "head":
            self._count(kind, self._alive)
            self.cluster.kill_head()
            time.sleep(_OUTAGE)
            self.cluster.replace_all()
        elif kind == "node":
            node = self.cluster.workers[int(choice * len(self.cluster.workers))]
            pids = {process.pid for process in self.cluster.processes_of(node)}
            self._count(kind, lambda live: len(pids.intersection(self.replicas_of(live))))
            self.cluster.kill_worker(node)
            time.sleep(_OUTAGE)
            self.cluster.replace_worker(node)
        else:
            self._count(kind, lambda _: 0)
            self.airflow.kill(kind, with_family=with_family)
            self.airflow.start(kind)

    def _count(self, kind: str, lost: Callable[[Live], int]) -> None:
        for live in self.live:
            self.jobs_of(live)  # a head that is killed forgets them
            live.hits.append(kind)
            live.replicas_lost += lost(live)

    def _worker(self, live: Live, with_supervisor: bool) -> list[psutil.Process]:
        found = live.task.read()
        if found["state"] != "running" or not found["pid"]:
            return []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(found["pid"])
            supervisor = process.parent()
            if supervisor is not None and "LocalExecutor" in " ".join(supervisor.cmdline()):
                return [supervisor, process] if with_supervisor else [process]
        return []

    def _driver(self, live: Live) -> list[psutil.Process]:
        ids = {job["submission_id"] for job in self.jobs_of(live) if job["status"] in {"PENDING", "RUNNING"}}
        for process in self.cluster.processes_of_head():
            with suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if command[1:3] == ["-m", _DRIVER]:
                    settings = process.environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
                    if any(submission_id in settings for submission_id in ids):
                        return [process]
        return []

    def _engine(self, live: Live, choice: float) -> list[psutil.Process]:
        pids = sorted(self.replicas_of(live))
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(pids[int(choice * len(pids))])] if pids else []
        return []

    def _actors(self) -> list[dict[str, Any]]:
        with suppress(*_SILENCE):
            return self._ask_for_actors()
        return []

    def _ask_for_actors(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.cluster.url}/api/v0/actors?limit=10000", timeout=30).json()
        actors = answer["data"]["result"]["result"]
        return [actor for actor in actors if actor["state"] == "ALIVE" and "Replica" in actor["class_name"]]
