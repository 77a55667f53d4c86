# SPDX-License-Identifier: Apache-2.0
"""Ways to stop a job, and the time from the deed to the end of the job and its replicas."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ..integration.end_to_end.rest import Task
from ..integration.end_to_end.waiting import all_at_once, wait_for
from .plan import MODES
from .version import version
from .workload import Pace, write_source
from .world import BOUND, World

ENDLESS = Pace(rows=6000, replicas=1, slots=8, rows_in_flight=16, batch_size=8, seconds_per_token=0.15)
LONGEST = 60.0
"""Seconds within which a job must have ended, and its replicas be gone."""
_PATIENCE = 400.0
_AT_DEADLINE = "the job's deadline passed"
_TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}


@dataclass(frozen=True)
class Stop:
    """The end of a job.

    :param way: the deed, or the bound that was reached.
    :param status: the job's status.
    :param at_deadline: whether its driver reported that it ended itself at its deadline.
    :param stop_s: seconds from the deed or the bound until the job had ended and its replicas were gone.
    :param rows_kept: good rows in the ledger.
    """

    way: str
    mode: str
    version: str
    status: str
    at_deadline: bool
    stop_s: float
    rows_kept: int

    @property
    def flaws(self) -> list[str]:
        """Violated promises: a stopped job must be STOPPED, or FAILED only if it obeyed a bound by itself."""
        may_fail = self.way in TIMED and self.at_deadline
        found = []
        if self.status != "STOPPED" and not (may_fail and self.status == "FAILED"):
            found.append(f"status={self.status}")
        if not 0 <= self.stop_s <= LONGEST:
            found.append(f"stop_s={self.stop_s}")
        return found + ([] if self.rows_kept else ["no row kept"])

    def __str__(self) -> str:
        flaws = f"; FLAWS: {', '.join(self.flaws)}" if self.flaws else ""
        kept = f"{self.rows_kept} rows kept"
        return f"{self.way} ({self.mode}): {self.status} after {self.stop_s} s, {kept}{flaws}"


@dataclass
class Going:
    """An endless run that has finished some rows."""

    world: World
    task: Task
    mode: str
    folder: Path
    since: float = field(default_factory=time.time)

    def job(self) -> dict[str, Any]:
        """Return its first job."""
        first: dict[str, Any] = self.world.jobs.of(self.task)[0]
        return first

    def replicas(self) -> list[int]:
        """Return the process ids of the living replicas of its first job."""
        return [actor["pid"] for actor in self.world.jobs.replicas(self.job())]

    def rows_kept(self) -> int:
        files = self.folder.glob("destination/_raybatch/parts/**/*.parquet")
        return sum(sum(pq.read_table(file, columns=["ok"])["ok"].to_pylist()) for file in files)

    def stopped(self, way: str, since: float) -> Stop:
        """Wait for the job's end.

        :param since: epoch seconds of the deed.
        """
        job = wait_for(
            f"the end of the job of a task that was {way}",
            self._ended,
            _PATIENCE,
            self.task.run.evidence,
            0.2,
        )
        ended = time.time()
        return Stop(
            way=way,
            mode=self.mode,
            version=version(),
            status=job["status"],
            at_deadline=_AT_DEADLINE in self.world.jobs.log(job["submission_id"]),
            stop_s=round(ended - since, 1),
            rows_kept=self.rows_kept(),
        )

    def all_ended(self) -> bool:
        """Stop its remaining jobs, since a dead worker does not; return whether there were none."""
        left = [job for job in self.world.jobs.of(self.task) if job["status"] not in _TERMINAL]
        for job in left:
            self.world.jobs.stop(job["submission_id"])
        return not left

    def _ended(self) -> dict[str, Any] | None:
        job = self.job()
        gone = job["status"] in _TERMINAL and not self.world.jobs.replicas(job)
        return job if gone else None


def _fail_run(task: Task) -> None:
    task.run.api.call("PATCH", task.run.path, json={"state": "failed"})


DEEDS: dict[str, Callable[[Task], None]] = {
    "marked failed": lambda task: task.mark("failed"),
    "marked success": lambda task: task.mark("success"),
    "cleared": lambda task: task.clear(),
    "DAG run failed": _fail_run,
}
TIMED = ("timeout", "execution_timeout")


ALL_DEEDS = tuple((way, mode) for way in DEEDS for mode in MODES)


def deeds(world: World, ways: Sequence[tuple[str, str]] = ALL_DEEDS) -> list[Stop]:
    """Do what users do, by default all of it in both modes."""
    with going(world, [f"stop_{mode}" for _, mode in ways]) as runs:

        def do(number: int) -> Stop:
            way, run = ways[number][0], runs[number]
            since = time.time()
            DEEDS[way](run.task)
            return run.stopped(way, since)

        return all_at_once(do, range(len(runs)))


def bounds(world: World) -> list[Stop]:
    """Let time limits end jobs, in both modes."""
    ways = [(way, mode) for way in TIMED for mode in MODES]
    with going(world, [f"{way}_{mode}" for way, mode in ways]) as runs:

        def do(number: int) -> Stop:
            run = runs[number]
            began = datetime.fromisoformat(run.task.read()["start_date"]).timestamp()
            return run.stopped(ways[number][0], began + BOUND)

        return all_at_once(do, range(len(runs)))


@contextmanager
def going(world: World, dag_ids: list[str]) -> Iterator[list[Going]]:
    """Start endless runs in parallel, because their start takes long; each finishes some rows."""
    runs = []
    try:
        for dag_id in dag_ids:
            folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
            write_source(folder, ENDLESS.rows, 0)
            run = world.airflow.api.trigger(dag_id, **ENDLESS.params(folder))
            mode = "blocking" if dag_id.endswith("_blocking") else "deferrable"
            runs.append(Going(world, run.task("infer"), mode, folder))

        def ready(one: Going) -> None:
            wait_for("the first rows", lambda: one.rows_kept() > 0, _PATIENCE, one.task.run.evidence)
            one.since = time.time()

        all_at_once(ready, runs)
        yield runs
    finally:
        for one in runs:
            if one.task.run.state in {"queued", "running"}:
                _fail_run(one.task)
        for one in runs:
            wait_for("all jobs' end", one.all_ended, _PATIENCE)
            shutil.rmtree(one.folder, ignore_errors=True)
