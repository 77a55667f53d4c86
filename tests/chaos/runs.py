# SPDX-License-Identifier: Apache-2.0
"""A run: a DAG run that asks about its own rows, one kill, and what came out of it.

What is counted:

- *generated*: lines in the echo engine's request logs, which the replicas' processes write as each request
  ends, whatever becomes of its answer; over all submissions of the run.
- *in flight*: `rows_in_flight` for each replica that a kill took with it: so many rows, at most, had it taken
  and not yet written. Worker, triggerer and scheduler take none. Driver and head take all replicas of the
  job, an engine's process itself, a node those that run on it.
- *generated_ratio*: generated / (rows + in flight), which must be at most 1.02.
- *lost*, *duplicated*, *wrong*: see `workload.Found`; every row in the folder that the task handed over,
  against the input and the answers worked out from the echo engine's documentation.

Runs share one Airflow and one cluster, so what one run kills may hit others. Each run tells all that hit it,
and allows for the replicas that it lost by any of it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from ..integration.end_to_end.rest import RUN_ENDED, Run
from .plan import Kill
from .workload import Found, Pace, check, delivered, generated, generated_by_now, prompt_of, write_source
from .world import Live, World

MOST_GENERATED = 1.02
_LONGEST = 420.0
_LOOK = 0.5


@dataclass(frozen=True)
class Result:
    """One line of the results file.

    :param kind: what was killed for this run; ``none`` for a run that only sets the pace.
    :param killed: whether there was such a process before the run had ended.
    :param hits: kinds of all kills that happened while it ran, its own included.
    :param instant: seconds after the run's submission.
    :param before: rows that had been generated at that instant.
    :param seconds: from submission to the DAG run's end.
    :param expected: seconds that a run takes undisturbed.
    """

    seed: int
    kind: str
    mode: str
    with_family: bool
    killed: bool
    hits: list[str]
    instant: float
    before: int
    state: str
    rows: int
    generated: int
    in_flight: int
    lost: int
    duplicated: int
    wrong: int
    tries: int
    submissions: int
    seconds: float
    expected: float

    @property
    def generated_ratio(self) -> float:
        return self.generated / (self.rows + self.in_flight)

    @property
    def flaws(self) -> list[str]:
        """What it must not have; empty when all is well."""
        found = [f"state={self.state}"] if self.state != "success" else []
        found += [f"{name}={n}" for name in ("lost", "duplicated", "wrong") if (n := getattr(self, name))]
        if self.generated_ratio > MOST_GENERATED or self.generated < self.rows:
            found.append(f"generated={self.generated} of {self.rows}+{self.in_flight}")
        return found

    def __str__(self) -> str:
        flaws = f"; FLAWS: {', '.join(self.flaws)}" if self.flaws else ""
        return (
            f"seed {self.seed} ({self.kind}, {self.mode}): "
            f"{f'killed at {self.instant:.0f} s, {self.before} rows' if self.killed else 'nobody killed'}, "
            f"hit by {'+'.join(self.hits) or 'none'}; {self.seconds:.0f} s for {self.expected:.0f}, "
            f"generated {self.generated} for {self.rows}+{self.in_flight}, {self.submissions} jobs, "
            f"{self.tries} tries{flaws}"
        )


def together(
    world: World,
    kills: Sequence[Kill],
    parallel: int,
    pace: Pace,
    expected: float,
    note: Callable[[Result], object],
    keep: Path | None = None,
) -> list[Result]:
    """A run for each kill, `parallel` at once; each is noted as it ends. See :func:`run`."""

    def one(kill: Kill) -> Result:
        result = run(world, pace, kill, expected, keep)
        note(result)
        return result

    pool = ThreadPoolExecutor(parallel)
    try:
        return list(pool.map(one, kills))
    finally:
        # When interrupted, the world ends first; what still runs in it then ends by itself.
        pool.shutdown(wait=False, cancel_futures=True)


def run(world: World, pace: Pace, kill: Kill, expected: float, keep: Path | None = None) -> Result:
    """Start a DAG run, kill, wait for its end, compare.

    :param expected: seconds that a run takes undisturbed, over which the kill's instant is spread; 0 for a
        run without a kill.
    :param keep: a folder for the run's evidence if it has flaws.
    """
    folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    source = write_source(folder, pace.rows, kill.seed)
    started = time.monotonic()
    dag_run = world.airflow.api.trigger(f"chaos_{kill.mode}", **pace.params(folder))
    live = Live(dag_run.task("infer"), pace.replicas)
    world.live.append(live)
    try:
        killed = expected > 0 and _disturb(world, live, kill, started + kill.share * expected)
        instant, before = time.monotonic() - started, generated_by_now(folder)
        state = _end(world, live, started)
        seconds = time.monotonic() - started
    finally:
        world.live.remove(live)
    found = _found(live, state, source)
    counts = generated(folder)
    assert not {*counts} - {prompt_of(row) for row in source.values()}
    result = Result(
        seed=kill.seed,
        kind=kill.kind if expected else "none",
        mode=kill.mode,
        with_family=kill.with_family,
        killed=killed,
        hits=live.hits,
        instant=round(instant, 1),
        before=before,
        state=state,
        rows=pace.rows,
        generated=sum(counts.values()),
        in_flight=live.replicas_lost * pace.rows_in_flight,
        tries=live.task.read()["try_number"],
        submissions=len(live.submissions),
        seconds=round(seconds, 1),
        expected=round(expected or seconds, 1),
        **asdict(found),
    )
    if result.flaws and keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{kill.seed}.log").write_text(f"{result}\n{folder}\n{dag_run.evidence()}\n")
    else:
        shutil.rmtree(folder)
    return result


def _disturb(world: World, live: Live, kill: Kill, instant: float) -> bool:
    def over() -> bool:
        return _state(live.task.run) in RUN_ENDED

    time.sleep(max(0.0, instant - time.monotonic()))
    return world.kill(live, kill.kind, kill.with_family, kill.choice, over)


def _end(world: World, live: Live, started: float) -> str:
    while time.monotonic() - started < _LONGEST:
        world.jobs_of(live)
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


def _found(live: Live, state: str, source: dict[int, dict[str, Any]]) -> Found:
    if state != "success":
        return Found(lost=len(source))
    return check(source, delivered(live.task.xcom()["uri"]))
