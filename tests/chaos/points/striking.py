# SPDX-License-Identifier: Apache-2.0
"""A run that is struck at its points, and the search for its flaws."""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.arguments.data import REUSED_COLUMN
from tests.support.engine_log import engines
from tests.support.s3_server import S3Server

from ...integration.end_to_end.rest import RUN_ENDED, Run
from ...integration.end_to_end.waiting import all_at_once, wait_for
from ..places import Bucket, Disk, Place, Published, contents, published
from ..workload import Pace, check, write_source
from ..world import World
from . import stored
from .catalogue import BATCH, ROWS, ROWS_IN_FLIGHT, ROWS_PER_PART, Aim

INSIDE = Path(__file__).parent / "inside"
"""What is imported by the processes that are struck."""
PACE = Pace(
    rows=ROWS, replicas=1, slots=8, rows_in_flight=ROWS_IN_FLIGHT, batch_size=BATCH, seconds_per_token=0.02
)
_PROCESS = re.compile(r"-(\d+)-[0-9a-f]{8}-\d{6}\.[^/]*\.parquet$")
"""In the path of a part, the id of the process that wrote it."""
_KEEPERS = ("LocalExecutor", "JobSupervisor", "triggerer")
_LONGEST = 900.0
_POLL_INTERVAL = 0.5
_TAKEN_OVER = 6.0
"""Seconds in which a run goes on without a frozen driver, if it can; else its task is cleared."""
_THAWED = 40.0
_AFTER_THAW = 8.0
_JOBS_END = 60.0
_TERMINAL = {"SUCCEEDED", "FAILED", "STOPPED"}


@dataclass(frozen=True)
class Outcome:
    """One line of the results.

    :param struck: points at which a process was struck, in that order.
    :param flaws: violated promises; empty if all is well.
    :param generated: requests in the engines' own logs, for `rows` rows of input.
    """

    points: tuple[str, ...]
    mode: str
    store: str
    signal: str
    struck: tuple[str, ...]
    flaws: tuple[str, ...]
    rows: int
    generated: int
    jobs: int
    tries: int
    commits: int
    seconds: float

    def __str__(self) -> str:
        verdict = f"FLAWS: {', '.join(self.flaws)}" if self.flaws else "good"
        return (
            f"SIG{self.signal} at {' + '.join(self.points)} ({self.mode}, {self.store}): {verdict}; "
            f"generated {self.generated} for {self.rows}, {self.jobs} jobs, {self.tries} tries, "
            f"{self.commits} commits, {self.seconds:.0f} s"
        )


def together(
    world: World,
    aims: Sequence[Aim],
    parallel: int,
    note: Callable[[Outcome], object],
    keep: Path,
    server: S3Server,
) -> list[Outcome]:
    """Start a run for each aim, several at once, and note each as it ends.

    :param keep: a folder for the evidence of those with flaws.
    """
    bucket = server.new_bucket()
    # There is one triggerer, and a second one while the first is frozen: not both may be struck.
    alone = threading.Lock() if any(_freezes_triggerer(aim) for aim in aims) else None

    def one(aim: Aim) -> Outcome:
        lock = alone if any(point.where == "trigger" for point in aim.found) else None
        with lock or nullcontext():
            outcome = Strike(world, aim, server, bucket).outcome(keep)
        note(outcome)
        return outcome

    with _triggerer_comes_back(world):
        return all_at_once(one, aims, parallel)


class Strike:
    """One run."""

    def __init__(self, world: World, aim: Aim, server: S3Server, bucket: str) -> None:
        self._world = world
        self._aim = aim
        self._folder = Path(tempfile.mkdtemp(prefix="kp-"))
        self._struck = self._folder / "struck"
        self._struck.mkdir()
        self._destination = place(aim.store, server, bucket, self._folder / "destination")
        self._reuse = place(aim.store, server, bucket, self._folder / "reuse")
        self._flaws: list[str] = []
        self._run: Run | None = None
        self._cleared = self._thawed = False
        self._generated = self._jobs = self._tries = self._commits = 0

    def outcome(self, keep: Path) -> Outcome:
        """Do the run; a failure of the harness is a flaw of the run, too."""
        began = time.monotonic()
        for step in (self._go, self._thaw, self._judge):
            try:
                step()
            except Exception as error:
                first = next(iter(str(error).splitlines()), "")
                self._flaws.append(f"{type(error).__name__}: {first}")
        outcome = Outcome(
            **vars(self._aim),
            struck=tuple(hit["point"] for hit in self._hits()),
            flaws=tuple(self._flaws),
            rows=ROWS,
            generated=self._generated,
            jobs=self._jobs,
            tries=self._tries,
            commits=self._commits,
            seconds=round(time.monotonic() - began, 1),
        )
        if outcome.flaws:
            self._keep(outcome, keep)
        else:
            shutil.rmtree(self._folder)
        return outcome

    def _keep(self, outcome: Outcome, keep: Path) -> None:
        evidence = ""
        if self._run is not None:
            try:
                evidence = self._run.evidence()
            except Exception as error:
                evidence = str(error)
        keep.mkdir(parents=True, exist_ok=True)
        name = "-".join([*self._aim.points, self._aim.mode, self._aim.store, self._aim.signal])
        (keep / f"{name}.log").write_text(f"{outcome}\n{self._folder}\n{evidence}\n")

    def _go(self) -> None:
        source = write_source(self._folder, ROWS, seed=len(self._aim.points))
        if any(point.merges for point in self._aim.found):
            stored.fill(self._reuse)
        dag_id = f"points_{self._aim.mode}"
        self._run = run = self._world.airflow.api.trigger(dag_id, **self._params())
        state = self._end(run)
        if state != "success":
            self._flaws.append(f"state={state}")
            return
        before = self._read_published(run, source)
        # A driver continues after its task has the dataset, so the strike may come only now.
        with suppress(AssertionError):
            wait_for("the end of all jobs", lambda: self._frozen() or self._ended(run), _JOBS_END)
        if self._frozen():
            self._thaw()
            after = self._read_published(run, source)
            if after != before:
                self._flaws.append("changed when the frozen process went on")
        try:
            wait_for("the end of all jobs", lambda: self._ended(run), _JOBS_END)
        except AssertionError:
            self._flaws.append("a job is left running")

    def _params(self) -> dict[str, Any]:
        points = self._aim.found
        flush_interval = min(point.flush_interval for point in points)
        # Else a machine that writes slowly is through before it has written a third part.
        pace = 0.1 if flush_interval < 1 else PACE.seconds_per_token
        params = replace(PACE, flush_interval=flush_interval, seconds_per_token=pace).params(self._folder)
        aims = {"struck": str(self._struck), "signals": self._aim.signals, "keepers": _KEEPERS}
        faults = [point.fault for point in points if point.fault is not None]
        env = {
            "PYTHONPATH": str(INSIDE),
            "RAYBATCH_AIMS": json.dumps({**aims, "faults": faults}),
            **self._destination.environment,
        }
        return {
            **params,
            "destination": self._destination.uri,
            "rows_per_part": ROWS_PER_PART,
            "reuse": self._reuse.uri if any(point.reuses for point in points) else None,
            "runtime_env": {"env_vars": env},
            "aims": aims,
        }

    def _end(self, run: Run) -> str:
        """Wait for the run's end; meanwhile act as users do if a job is frozen."""
        deadline, helped = time.monotonic() + _LONGEST, False
        while time.monotonic() < deadline:
            state = run.state_if_known
            if state in RUN_ENDED:
                return state
            frozen = self._frozen()
            if frozen is not None and not helped and time.time() - frozen["at"] > _TAKEN_OVER:
                helped = True
                self._help(run, frozen)
            time.sleep(_POLL_INTERVAL)
        return "still running"

    def _help(self, run: Run, frozen: dict[str, Any]) -> None:
        where = self._where(frozen)
        if where == "driver":
            run.task("infer").clear()
            self._cleared = True
        elif where == "trigger":
            self._world.airflow.start("triggerer", beside="triggerer-2")

    def _read_published(self, run: Run, source: dict[int, dict[str, Any]]) -> tuple[Published, str]:
        """Return what readers find now, and note its flaws."""
        found = published(self._destination)
        returned = run.task("infer").xcom()["uri"]
        flaws = [
            f"{name}={number}" for name, number in vars(check(source, _own_columns(found))).items() if number
        ]
        if found.uri != returned:
            flaws.append(f"the task returned {returned}, the journal names {found.uri}")
        if not found.copied:
            flaws.append("manifest.json is not the journal's manifest")
        # One commit per run; a task that was cleared because its driver was frozen has a second run.
        if len(found.commits) != len({*found.commits}) or len(found.commits) > 1 + self._cleared:
            flaws.append(f"commits={len(found.commits)}")
        self._flaws += [flaw for flaw in flaws if flaw not in self._flaws]
        return found, returned

    def _thaw(self) -> None:
        """Let frozen processes continue, and wait until they are done."""
        frozen = self._frozen()
        if frozen is None or self._thawed:
            return
        self._thawed = True
        victim, *keepers = frozen["pids"]
        where = self._where(frozen)
        if where == "driver":
            # The driver first, because its supervisor has orders to end it.
            _resume([victim])
            _wait_for_end(victim)
            _resume(keepers)
        else:
            _resume([*keepers, victim])
            if where == "trigger":
                time.sleep(_AFTER_THAW)
                self._world.airflow.stop("triggerer-2")
            else:
                _wait_for_end(victim)

    def _where(self, hit: dict[str, Any]) -> str:
        return next(point.where for point in self._aim.found if point.name == hit["point"])

    def _ended(self, run: Run) -> bool:
        return all(job["status"] in _TERMINAL for job in self._world.jobs.of(run.task("infer")))

    def _frozen(self) -> dict[str, Any] | None:
        return next((hit for hit in self._hits() if hit["signal"] == "STOP"), None)

    def _hits(self) -> list[dict[str, Any]]:
        hits = [json.loads(file.read_text()) for file in self._struck.glob("[!.]*.json")]
        return sorted(hits, key=lambda hit: hit["at"])

    def _judge(self) -> None:
        """Note the flaws, whether or not the run succeeded."""
        points, struck = self._aim.found, {hit["point"] for hit in self._hits()}
        missed = [name for name in self._aim.points if name not in struck]
        if missed:
            self._flaws.insert(0, f"never struck at {', '.join(missed)}")
        self._count()
        if self._run is None:
            return
        task = self._run.task("infer")
        self._tries, self._jobs = task.read()["try_number"], len(self._world.jobs.of(task))
        if self._jobs != 1 and not any(point.where == "driver" for point in points):
            self._flaws.append(f"jobs={self._jobs}, though no driver was struck")
        self._commits = len(published(self._destination).commits)
        if any(point.reuses for point in points) and (wrong := stored.wrong(self._reuse, self._destination)):
            self._flaws.append(f"wrong responses in the store={wrong}")
        if any(point.merges for point in points) and (lost := stored.lost(self._reuse)):
            self._flaws.append(f"lost from the store={lost}")

    def _count(self) -> None:
        """Count the requests that the engines began; note those without an explanation."""
        self._generated = sum(len(engine.asked) for engine in engines(self._folder / "requests"))
        most = ROWS + self._lost()
        if not ROWS <= self._generated <= most:
            self._flaws.append(f"generated={self._generated} of {ROWS} to {most}")

    def _lost(self) -> int:
        """Return how many rows struck replicas had not written; these may be generated once more."""
        written = Counter[str]()
        for path, content in contents(self._destination, "_raybatch/parts/").items():
            process = _PROCESS.search(path)
            if process is not None:
                written[process[1]] += pq.ParquetFile(io.BytesIO(content)).metadata.num_rows
        struck = [str(hit["pids"][0]) for hit in self._hits() if self._where(hit) == "replica"]
        return sum(ROWS - written[process] for process in struck)


@contextmanager
def _triggerer_comes_back(world: World) -> Iterator[None]:
    """Restart the triggerer after its end, as an operator of Airflow would."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_INTERVAL):
            if not _lives(world.airflow.pid("triggerer")):
                world.airflow.start("triggerer")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def place(store: str, server: S3Server, bucket: str, folder: Path) -> Place:
    """Return `folder`, or a prefix of a bucket named after it and its parent."""
    return Disk(folder) if store == "disk" else Bucket(server, bucket, f"{folder.parent.name}/{folder.name}")


def _freezes_triggerer(aim: Aim) -> bool:
    return aim.signal == "STOP" and aim.found[-1].where == "trigger"


def _own_columns(found: Published) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != REUSED_COLUMN} for row in found.rows]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _resume(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).resume()


def _wait_for_end(pid: int) -> None:
    with suppress(AssertionError):
        wait_for("the end of a process", lambda: not _lives(pid), _THAWED)
