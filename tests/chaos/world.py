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
from ..integration.end_to_end.stack import API_SERVERS, INTERVALS, AirflowStack
from ..support.engine_log import engines
from .cluster import ChaosCluster, kill
from .counting import generated_by_now, living
from .frozen import FreezingProxy
from .lake import Lake, faulty_lake
from .places import Disk, Place, phase
from .plan import MODES
from .small_disk import fill

DAGS = Path(__file__).parent / "dags"
PLUGINS = Path(__file__).parent / "points" / "inside"
"""Airflow's processes import from its plugins folder."""
DAG_IDS = (
    *(
        f"{name}_{mode}"
        for name in ("chaos", "once", "mapped", "stop", "timeout", "execution_timeout", "points")
        for mode in MODES
    ),
    "bad_trigger",
)
BOUND = 90.0
"""Seconds that the runs with a bound may take: enough to finish some rows on a busy machine."""
PAST_BOUND = 15.0
"""Seconds after its bound at which a suspended driver goes on."""
_DRIVER = "airflow_provider_raybatch.job"
_OUTAGE = 3.0
"""Seconds between the loss of a node or head and the start of its replacement."""
_AWAY = 30.0
"""Seconds for which Ray or Airflow's API can't be reached."""
AWS = "chaos_s3"
"""The connection to the S3 server with faults."""
_LOOK = 0.2
OWN = ("worker", "driver", "engine", "cleared", "suspended", "mapped", "full")
"""Kinds of kills that hit one run alone."""
_VICTIM = {"cleared": "worker", "suspended": "driver", "mapped": "driver", "full": "driver"}
"""Whom these kinds hit."""
_SILENCE = (httpx.HTTPError, AssertionError, ValueError, LookupError, TypeError)
"""What a cluster that is away or busy makes of a question."""


def _no_engine(pid: int) -> bool:
    """No engine is lost."""
    return False


def _every_engine(pid: int) -> bool:
    """Each engine is lost."""
    return True


@dataclass(frozen=True)
class Hit:
    """A kill, as a run saw it.

    :param at: epoch seconds, just before the signal.
    :param phase: of the run's job at that instant, by what its folder held; ``""`` without a folder.
    :param rows: that had been generated.
    :param own: whether it was meant for this run, and not for another one that shares the victim.
    """

    kind: str
    at: float
    phase: str
    rows: int
    own: bool


@dataclass
class Live:
    """A run that is under way.

    :param folder: with its engines' logs (`requests`) and, on a disk, its `destination`.
    :param hits: all kills while it was; its own included.
    :param lost: its engines that these kills took, and when (epoch seconds).
    :param bound: seconds that its attempts may take, where that is bounded.
    :param elsewhere: its destination, where that is not in `folder`.
    :param submissions: all of its jobs that were seen: id, and epoch seconds when the cluster got it.
    """

    task: Task
    replicas: int
    folder: Path | None = None
    hits: list[Hit] = field(default_factory=list)
    lost: dict[int, float] = field(default_factory=dict)
    submissions: set[tuple[str, float]] = field(default_factory=set)
    bound: float = BOUND
    elsewhere: Place | None = None

    @property
    def place(self) -> Place | None:
        """Its destination."""
        return self.elsewhere or (Disk(self.folder / "destination") if self.folder else None)

    def engines(self) -> list[int]:
        """Process ids of its living engines, by their logs."""
        return living(self.folder / "requests") if self.folder else []

    def hit(self, kind: str, lost: list[int], own: bool) -> Hit:
        """Note a kill that is about to happen, and which of its engines it takes."""
        rows = generated_by_now(self.folder / "requests") if self.folder else 0
        found = phase(self.place) if self.place else ""
        now = time.time()
        one = Hit(kind, now, found, rows, own)
        self.hits.append(one)
        for pid in lost:
            self.lost.setdefault(pid, now)
        return one

    def lose_opened(self, since: float, seconds: float, takes: Callable[[int], bool] = _every_engine) -> None:
        """Note that engines which opened in this time (epoch seconds) are lost, too.

        A retry that comes while the disk is still full can keep no more than its predecessor; an engine may
        open while a kill is being prepared.

        :param takes: which processes the kill took.
        """
        assert self.folder is not None
        for engine in engines(self.folder / "requests"):
            if since <= engine.opened < since + seconds and takes(engine.pid):
                self.lost.setdefault(engine.pid, since)

    def may_be_cleared(self) -> bool:
        """Whether its kills explain one more failure than was cleared.

        A task without retries fails by a kill that was meant for another run, too: while the API is away,
        Airflow fails even one that is only queued.
        """
        cleared = sum(hit.kind == "clear" for hit in self.hits)
        return cleared < len(self.hits) - cleared


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
        self._starting = threading.Lock()
        self._lake: Lake | None = None
        self.live: list[Live] = []

    def __enter__(self) -> World:
        os.environ["CHAOS_BOUND_SECONDS"] = str(BOUND)
        os.environ["CHAOS_POLL_INTERVAL"] = "1" if self.lowered else "10"
        # Blocking tasks hold a slot each as long as they run.
        settings = {
            **(INTERVALS if self.lowered else {}),
            "CORE__PARALLELISM": "12",
            "CORE__PLUGINS_FOLDER": str(PLUGINS),
        }
        try:
            self.cluster = self._exit.enter_context(ChaosCluster(cpus=self._cpus))
            self.airflow = self._exit.enter_context(AirflowStack({"chaos": DAGS}, DAG_IDS, settings))
            self.jobs = RayJobs(self.cluster.url)
            self._exit.callback(self.jobs.close)
            api = self.airflow.api
            # Through a proxy, so that Airflow and Ray can be parted.
            self.network = self._exit.enter_context(FreezingProxy(self.cluster.port))
            api.connection("ray_default", "ray", host="127.0.0.1", port=self.network.port)
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    @property
    def lake(self) -> Lake:
        """An S3 server with faults, started when it is first wanted, and Airflow's connection to it."""
        with self._starting:
            if self._lake is None:
                self._lake = self._exit.enter_context(faulty_lake())
                self.airflow.api.connection(AWS, "aws", **self._lake.connection())
            return self._lake

    def kill(
        self, live: Live, kind: str, with_family: bool, choice: float, ended: Callable[[], bool]
    ) -> Hit | None:
        """Kill the first process of this kind that there is from now on.

        :param choice: which of several, 0 to 1.
        :param ended: whether it is too late; asked before a shared victim is killed, and after each look that
            found none of the run's own.
        :return: ``None`` if there was none.
        """
        while True:
            with self._kills:
                if kind not in OWN and ended():
                    return None
                if kind not in OWN:
                    return self._kill_shared(live, kind, with_family, choice)
                victims = self.victims(live, kind, with_family, choice)
                if victims:
                    return self._kill_own(live, kind, victims, choice)
            if ended():
                return None
            time.sleep(_LOOK)

    def victims(
        self, live: Live, kind: str, with_family: bool = False, choice: float = 0.0
    ) -> list[psutil.Process]:
        """What a kill of this kind would take now, of the kinds in `OWN`; nothing where it is not there."""
        victim = victim_of(kind)
        with suppress(*_SILENCE, psutil.NoSuchProcess):
            if victim == "worker":
                return self._worker(live, with_family)
            if victim == "driver":
                return self._driver(live)
            engines = live.engines()
            return [psutil.Process(engines[int(choice * len(engines))])] if engines else []
        return []

    def jobs_of(self, live: Live) -> list[dict[str, Any]]:
        """The run's jobs as the cluster knows them now; none while it is away. Remembers them all."""
        with suppress(httpx.HTTPError, AssertionError, ValueError):
            found = self.jobs.of(live.task)
            live.submissions |= {(job["submission_id"], job["start_time"] / 1000) for job in found}
            return found
        return []

    def replicas_of(self, live: Live) -> list[int]:
        """Process ids of the living replicas of a run.

        :raises httpx.HTTPError: the cluster gave no answer.
        """
        return [pid for job in self.jobs.of(live.task) for pid in self.replicas_of_job(job["job_id"])]

    def replicas_of_job(self, job_id: str | None) -> list[int]:
        """Process ids of the living replicas of a job.

        :raises httpx.HTTPError: the cluster gave no answer.
        """
        answer = httpx.get(f"{self.cluster.url}/api/v0/actors?limit=10000", timeout=30)
        actors = answer.raise_for_status().json()["data"]["result"]["result"]
        wanted = (job_id, "ALIVE")
        return [
            actor["pid"]
            for actor in actors
            if (actor["job_id"], actor["state"]) == wanted and "Replica" in actor["class_name"]
        ]

    def _kill_own(self, live: Live, kind: str, victims: list[psutil.Process], choice: float) -> Hit:
        victim = victim_of(kind)
        lost = {"worker": [], "driver": live.engines(), "engine": [victims[0].pid]}[victim]
        hit = live.hit(kind, lost, own=True)
        if kind == "full":
            assert live.folder is not None
            fill(live.folder / "destination", choice)
        elif kind == "suspended":
            (driver,) = victims
            driver.suspend()
            awake = threading.Timer(live.bound + PAST_BOUND, _resume, (driver,))
            awake.daemon = True
            awake.start()
        else:
            kill(victims)
        return hit

    def _kill_shared(self, live: Live, kind: str, with_family: bool, choice: float) -> Hit:
        if kind == "head":
            self._remember()
            hit = self._hit_all(live, kind, _every_engine)
            self.cluster.kill_head()
            self._lose_opened(_every_engine)
            time.sleep(_OUTAGE)
            self.cluster.replace_all()
        elif kind == "node":
            node = self.cluster.workers[int(choice * len(self.cluster.workers))]
            pids = {process.pid for process in self.cluster.processes_of(node)}
            hit = self._hit_all(live, kind, pids.__contains__)
            self.cluster.kill_worker(node)
            self._lose_opened(pids.__contains__)
            time.sleep(_OUTAGE)
            self.cluster.replace_worker(node)
        elif kind == "partition":
            hit = self._hit_all(live, kind, _no_engine)
            self.network.freeze()
            time.sleep(_AWAY)
            self.network.thaw()
        elif kind == "api":
            hit = self._hit_all(live, kind, _no_engine)
            self._without_api(dead=with_family)
        elif kind == "pair":
            worker = self.victims(live, "worker", with_family)
            hit = self._hit_all(live, kind, _no_engine)
            kill(worker)
            self.airflow.kill("triggerer", with_family=True)
            self.airflow.start("triggerer")
        else:
            hit = self._hit_all(live, kind, _no_engine)
            self.airflow.kill(kind, with_family=with_family)
            self.airflow.start(kind)
        return hit

    def _without_api(self, dead: bool) -> None:
        """Airflow's API servers are away for a while: dead, or frozen."""
        if dead:
            for name in API_SERVERS:
                self.airflow.kill(name, with_family=True)
            time.sleep(_AWAY)
            for name in API_SERVERS:
                self.airflow.start(name)
            return
        servers = [psutil.Process(self.airflow.pid(name)) for name in API_SERVERS]
        family = [*servers, *(child for server in servers for child in server.children(recursive=True))]
        for process in family:
            process.suspend()
        time.sleep(_AWAY)
        for process in family:
            process.resume()

    def _remember(self) -> None:
        """Jobs that were seen: a new head knows none of the old one's."""
        for live in self.live:
            self.jobs_of(live)

    def _hit_all(self, whose: Live, kind: str, takes: Callable[[int], bool]) -> Hit:
        """Note a kill that hits all runs; the hit of the one for which it happens."""
        others = [live for live in self.live if live is not whose]
        *_, own = [
            live.hit(kind, [pid for pid in live.engines() if takes(pid)], own=live is whose)
            for live in (*others, whose)
        ]
        return own

    def _lose_opened(self, takes: Callable[[int], bool]) -> None:
        """Engines that opened since the kill was noted are lost by it, too."""
        for live in self.live:
            at = live.hits[-1].at
            if live.folder is not None:
                live.lose_opened(at, time.time() - at, takes)

    def _worker(self, live: Live, with_supervisor: bool) -> list[psutil.Process]:
        found = live.task.read()
        if found["state"] != "running" or not found["pid"]:
            return []
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


def victim_of(kind: str) -> str:
    """Which process a kind of kill hits."""
    return _VICTIM.get(kind, kind)


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
