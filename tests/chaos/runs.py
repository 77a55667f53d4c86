# SPDX-License-Identifier: Apache-2.0
"""A run: a DAG run that asks about its own rows, one kill, and what came out of it.

Every run is a line of the results file. What is counted of requests is told in `counting`, what of rows in
`workload.Found`: every row in the folder that the task handed over, against the input and the answers worked
out from the echo engine's documentation.

- *missed*: why the run's kill did not happen, or why it could not be counted. It is a flaw of the harness.
- Where no engine of a run was lost, asked and generated must equal the rows. Where kills took engines, no
  prompt is asked twice but for what was in flight in them, and that is `rows_in_flight` each at most.

Runs share one Airflow and one cluster, so what one run kills may hit others. Each run tells all that hit it,
and allows for the engines that it lost by any of it. An engine that dies of anything else is not allowed for.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ..engine_log import engines
from ..integration.end_to_end.rest import RUN_ENDED, Run
from .counting import count
from .lake import Bucket
from .places import Parts
from .plan import KINDS, WEATHER, Kill
from .version import Version
from .workload import Found, Pace, check, delivered, prompt_of, write_source
from .world import AWS, OWN, Hit, Live, World, victim_of

CLEARED = ("cleared", "suspended")
"""Kinds after which the task fails, and is cleared."""
_DAGS = {"cleared": "once", "suspended": "bounded"}
_LONGEST = 600.0
_LONGEST_AWAY = 120.0
_LOOK = 0.5
_BIRTH_LOOK = 0.1
_LATE = 2.0
"""Seconds after a kill's instant in which a victim that did not show is looked for again."""

Answer = TypeVar("Answer")
Lives = dict[tuple[str, str], float]
"""Seconds that each kind of victim lives undisturbed, by kind and mode; of a shared one, those of a run."""


@dataclass(frozen=True)
class Result:
    """One line of the results file.

    :param kind: what was killed for this run; ``none`` for a run that only sets the pace.
    :param store: ``disk``, or ``s3`` with faults.
    :param missed: why nothing was killed for it, or its check raised; ``""`` when all went as planned.
    :param instant: seconds from the run's submission to its own kill, measured at that kill.
    :param phase: of its job at that instant, by what its folder held; ``""`` without a kill.
    :param before: rows that had been generated at that instant.
    :param hits: all kills while it ran, its own included.
    :param lost_engines: its engines that those took.
    :param most_in_flight: rows that a single lost engine had in flight.
    :param may_in_flight: rows that an engine may have in flight.
    :param seconds: from submission to the DAG run's end.
    :param expected: seconds that a run takes undisturbed.
    """

    seed: int
    kind: str
    mode: str
    store: str
    with_family: bool
    version: dict[str, str]
    missed: str = ""
    instant: float = 0.0
    phase: str = ""
    before: int = 0
    hits: list[dict[str, Any]] = field(default_factory=list)
    state: str = ""
    rows: int = 0
    asked: int = 0
    generated: int = 0
    lost_engines: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    may_in_flight: int = 0
    unexplained: int = 0
    late: int = 0
    foreign: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    tries: int = 0
    submissions: int = 0
    seconds: float = 0.0
    expected: float = 0.0

    @property
    def flaws(self) -> list[str]:
        """What it must not have; empty when all is well."""
        found = [f"missed: {self.missed}"] if self.missed else []
        if not self.state:  # nothing was counted
            return found
        found += [f"state={self.state}"] if self.state != "success" else []
        zeros = ("lost", "duplicated", "wrong", "unexplained", "late", "foreign")
        found += [f"{name}={n}" for name in zeros if (n := getattr(self, name))]
        if not self.lost_engines and not self.asked == self.generated == self.rows:
            found.append(f"asked={self.asked}, generated={self.generated} of {self.rows}")
        if self.generated < self.rows or self.asked > self.rows + self.in_flight:
            found.append(f"asked={self.asked}, generated={self.generated} of {self.rows}+{self.in_flight}")
        if self.most_in_flight > self.may_in_flight:
            found.append(f"in_flight={self.most_in_flight} of {self.may_in_flight}")
        return found

    def __str__(self) -> str:
        flaws = f"; FLAWS: {', '.join(self.flaws)}" if self.flaws else ""
        hits = "+".join(hit["kind"] for hit in self.hits) or "none"
        killed = "nothing killed"
        if self.phase:
            killed = f"killed at {self.instant:.1f} s, {self.phase}, {self.before} rows"
        return (
            f"seed {self.seed} ({self.kind}, {self.mode}, {self.store}): {killed}, "
            f"hit by {hits}; {self.seconds:.0f} s for {self.expected:.0f}, asked {self.asked} and generated "
            f"{self.generated} for {self.rows}+{self.in_flight}, {self.lost_engines} engines lost, "
            f"{self.submissions} jobs, {self.tries} tries{flaws}"
        )


@dataclass(frozen=True)
class Setting:
    """What all runs of a harness share.

    :param keep: a folder for the evidence of runs with flaws.
    """

    world: World
    pace: Pace
    version: Version
    keep: Path | None = None


def together(
    setting: Setting, kills: Sequence[Kill], parallel: int, lives: Lives, note: Callable[[Result], object]
) -> list[Result]:
    """A run for each kill, `parallel` at once; each is noted as it ends. See :func:`run`."""

    def one(kill: Kill) -> Result:
        result = run(setting, kill, lives)
        note(result)
        return result

    pool = ThreadPoolExecutor(parallel)
    try:
        return list(pool.map(one, kills))
    finally:
        # When interrupted, the world ends first; what still runs in it then ends by itself.
        pool.shutdown(wait=False, cancel_futures=True)


def run(setting: Setting, kill: Kill, lives: Lives) -> Result:
    """Start a DAG run, kill, wait for its end, compare. What raises on the way is the result's `missed`."""
    folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    evidence: list[Run] = []
    try:
        result = _run(setting, kill, lives, folder, evidence)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".partition("\n")[0]
        result = Result(
            seed=kill.seed,
            kind=kill.kind,
            mode=kill.mode,
            store=kill.store,
            with_family=kill.with_family,
            version=asdict(setting.version),
            missed=told,
        )
    if result.flaws and setting.keep is not None:
        setting.keep.mkdir(parents=True, exist_ok=True)
        told = "\n".join(_evidence(one) for one in evidence)
        (setting.keep / f"{kill.seed}.log").write_text(f"{result}\n{folder}\n{told}\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _run(setting: Setting, kill: Kill, lives: Lives, folder: Path, evidence: list[Run]) -> Result:
    world, pace = setting.world, setting.pace
    source = write_source(folder, pace.rows, kill.seed)
    params, bucket = pace.params(folder), None
    if kill.store == "s3":
        bucket = world.lake.new_bucket()
        uris = {"source": bucket.put_source(folder / "source"), "destination": bucket.destination}
        params |= {**uris, "aws_conn_id": AWS}
    began, started = time.time(), time.monotonic()
    dag = f"{_DAGS.get(kill.kind, 'chaos')}_{kill.mode}"
    dag_run = _patiently(lambda: world.airflow.api.trigger(dag, **params))
    evidence.append(dag_run)
    live = Live(dag_run.task("infer"), pace.replicas, folder, elsewhere=bucket)
    world.live.append(live)
    try:
        hit, missed = _disturb(world, live, kill, lives) if kill.kind != "none" else (None, "")
        watch = FirstLives(world, live) if kill.kind == "none" else None
        state = _end(world, live, started, watch)
        if state == "failed" and kill.kind in CLEARED:
            # The job that the failed attempt left is stopped, and with it its engines.
            live.hit("clear", live.engines(), own=False)
            live.task.clear()
            state = _end(world, live, started, watch)
        seconds = time.monotonic() - started
    finally:
        world.live.remove(live)
    if watch is not None:
        watch.shorten(lives, kill.mode, seconds)
    counted = count(
        engines(folder / "requests"),
        Parts(live.place).all() if live.place else [],
        live.lost,
        live.submissions,
        {prompt_of(row) for row in source.values()},
    )
    return Result(
        seed=kill.seed,
        kind=kill.kind,
        mode=kill.mode,
        store=kill.store,
        with_family=kill.with_family,
        version=asdict(setting.version),
        missed=missed,
        instant=round(hit.at - began, 1) if hit else 0.0,
        phase=hit.phase if hit else "",
        before=hit.rows if hit else 0,
        hits=[{**asdict(one), "at": round(one.at - began, 1)} for one in live.hits],
        state=state,
        rows=pace.rows,
        lost_engines=len(live.lost),
        may_in_flight=pace.rows_in_flight,
        tries=_patiently(live.task.read)["try_number"],
        submissions=len(live.submissions),
        seconds=round(seconds, 1),
        expected=round(lives.get(("run", kill.mode), seconds), 1),
        **asdict(counted),
        **asdict(_found(live, state, source, bucket)),
    )


def _disturb(world: World, live: Live, kill: Kill, lives: Lives) -> tuple[Hit | None, str]:
    """Kill at the planned share of the victim's life; or why that was not possible."""
    begun = time.monotonic()
    while kill.kind in OWN and not world.victims(live, kill.kind):
        if _state(live.task.run) in RUN_ENDED:
            return None, f"no {kill.kind} was seen before the run ended"
        time.sleep(_BIRTH_LOOK)
    born = time.monotonic()
    instant = born + kill.share * lives[kill.kind, kill.mode]
    time.sleep(max(0.0, instant - time.monotonic()))
    hit = None
    if _state(live.task.run) not in RUN_ENDED:
        hit = world.kill(
            live, kill.kind, kill.with_family, kill.choice, lambda: time.monotonic() > instant + _LATE
        )
    if hit is None:
        return None, f"the {kill.kind} was gone {time.monotonic() - begun:.1f} s after the run began"
    return hit, ""


class FirstLives:
    """How long the first worker, driver and engine of an undisturbed run live."""

    def __init__(self, world: World, live: Live) -> None:
        self._world, self._live = world, live
        self._seen: dict[str, tuple[float, float]] = {}
        self._alive = {victim_of(kind) for kind in OWN}

    def look(self) -> None:
        """Note who is alive now."""
        for kind in [*self._alive]:
            now = time.monotonic()
            if self._world.victims(self._live, kind):
                self._seen[kind] = (self._seen.get(kind, (now, now))[0], now)
            elif kind in self._seen:
                self._alive.remove(kind)

    def shorten(self, lives: Lives, mode: str, seconds: float) -> None:
        """Put into `lives` what is shorter than known; of shared victims the run's `seconds`."""
        found = {kind: last - first for kind, (first, last) in self._seen.items()}
        for kind in ("run", *KINDS, *WEATHER):
            known = lives.get((kind, mode), float("inf"))
            lives[kind, mode] = min(known, found.get(victim_of(kind), known if kind in OWN else seconds))


def _end(world: World, live: Live, started: float, watch: FirstLives | None) -> str:
    while time.monotonic() - started < _LONGEST:
        world.jobs_of(live)
        if watch is not None:
            watch.look()
        state = _state(live.task.run)
        if state in RUN_ENDED:
            return state
        time.sleep(_LOOK)
    return "still running"


def _state(dag_run: Run) -> str:
    try:
        return dag_run.state
    except httpx.TransportError:  # the machine is busy: ask again
        return "unknown"


def _found(live: Live, state: str, source: dict[int, dict[str, Any]], bucket: Bucket | None) -> Found:
    if state != "success":
        return Found(lost=len(source))
    uri = _patiently(live.task.xcom)["uri"]
    return check(source, bucket.rows(uri) if bucket else delivered(uri))


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """What Airflow's API answers, which may be away for a while."""
    deadline = time.monotonic() + _LONGEST_AWAY
    while True:
        try:
            return ask()
        except httpx.ConnectError:  # nothing was asked
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK)


def _evidence(dag_run: Run) -> str:
    try:
        return dag_run.evidence()
    except Exception as error:  # Airflow may be what is broken
        return repr(error)
