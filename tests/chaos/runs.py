# SPDX-License-Identifier: Apache-2.0
"""A run: a DAG run over its own rows, one kill, and its result.

`counting` explains the counts of requests, :class:`.result.Result` what is a flaw. Every row in the folder
that the task returned is compared with the input, and with answers that follow from the echo engine's
documentation.

Runs share one Airflow and one cluster, so a kill of one run may hit others. Each run lists all kills that hit
it, and allows for the engines that it lost by them. No other death of an engine is allowed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.engine_log import engines

from ..integration.end_to_end.rest import RUN_ENDED, Run
from ..integration.end_to_end.waiting import all_at_once, wait_for
from . import small_disk
from .counting import Count, count, generated_by_now
from .lake import bucket_with
from .lives import FirstLives, Lives
from .places import Parts, Place, rows_at
from .plan import Kill
from .result import Result
from .workload import Found, Pace, check, requests_of, write_source
from .world import AWS, BOUND, OWN, Hit, Live, World

CLEARED = ("cleared", "suspended")
"""Kinds after which the task fails, and is cleared."""
_DAGS = {"cleared": "once", "suspended": "once", "mapped": "mapped"}
_BOUND_LIVES = 2.0
"""Bound of an attempt, as a multiple of the time of an undisturbed run."""
MAPPED = 3
"""Number of tasks of a mapped run, which share its rows."""
_NEARLY = 0.95
"""Share of generated rows at which a disk fills: one poll takes longer than publishing."""
_LONGEST = 600.0
_LONGEST_AWAY = 120.0
_POLL_INTERVAL = 1.0
_BIRTH_POLL_INTERVAL = 0.1
_LATE = 2.0
"""Seconds after a kill's instant in which a missing victim is searched again."""

_ROWS_BEFORE = 48
_END_OF_KEPT = 60.0
"""Seconds that a warm engine takes at most to notice that its user is gone, and to end."""
_A_WRITE = 2.0
"""Seconds for a part on a busy machine, on an S3 that fails some calls."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Setting:
    """Settings of all runs of a harness.

    :param keep: a folder for the evidence of runs with flaws.
    """

    world: World
    pace: Pace
    version: str
    keep: Path | None = None


def together(
    setting: Setting, kills: Sequence[Kill], parallel: int, lives: Lives, note: Callable[[Result], object]
) -> list[Result]:
    """Start a run for each kill, `parallel` at once, and note each as it ends. See :func:`run`."""

    def one(kill: Kill) -> Result:
        result = run(setting, kill, lives)
        note(result)
        return result

    return all_at_once(one, kills, parallel)


def _identity(setting: Setting, kill: Kill) -> dict[str, Any]:
    names = ("seed", "kind", "mode", "store", "with_family")
    return {**{name: getattr(kill, name) for name in names}, "version": setting.version}


def run(setting: Setting, kill: Kill, lives: Lives) -> Result:
    """Start a DAG run, kill, wait for its end, and compare. An exception becomes the result's `missed`."""
    folder = Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))
    evidence: list[Run] = []
    try:
        result = _run(setting, kill, lives, folder, evidence)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        result = Result(**_identity(setting, kill), missed=reason)
    if kill.kind == "full" and (folder / "destination").is_mount():
        small_disk.unmount(folder / "destination")
    if result.flaws and setting.keep is not None:
        setting.keep.mkdir(parents=True, exist_ok=True)
        notes = "\n".join(_evidence(one) for one in evidence)
        (setting.keep / f"{kill.seed}.log").write_text(f"{result}\n{folder}\n{notes}\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return result


@dataclass
class Case:
    """A task of a run and its rows; a mapped run has several tasks."""

    live: Live
    source: dict[int, dict[str, Any]]
    before: frozenset[str] = frozenset()
    """Submissions of the run before, which had its engines."""
    steps: bool = False

    @property
    def prompts(self) -> set[str]:
        """Its distinct requests."""
        return {prompt for row in self.source.values() for prompt in requests_of(row, self.steps)}

    def count(self, written_within: float) -> Count:
        """Count the requests to its engines; `written_within` as for :func:`.counting.count`."""
        folder, place = self.live.folder, self.live.place
        asked = [engine for engine in engines(folder / "requests") if engine.submission not in self.before]
        return count(
            asked, Parts(place).all(), self.live.lost, self.live.submissions, self.prompts, written_within
        )

    def found(self, state: str) -> Found:
        """Return the flaws of its result."""
        if state != "success":
            return Found(lost=len(self.source))
        uri = _retried(self.live.task.xcom)["uri"]
        return check(self.source, rows_at(self.live.place, uri), self.steps)


def _run(setting: Setting, kill: Kill, lives: Lives, folder: Path, evidence: list[Run]) -> Result:
    world, pace = setting.world, setting.pace
    bound = max(BOUND, _BOUND_LIVES * lives.get(("run", kill.mode), 0.0))
    cases = _start(setting, kill, folder, evidence, bound)
    began, started = time.time(), time.monotonic()
    dag_run = evidence[0]
    own = cases[int(kill.choice * len(cases))].live
    world.live += [case.live for case in cases]
    try:
        hit, missed = (
            _disturb(world, own, kill, lives, len(cases[0].prompts)) if kill.kind != "none" else (None, "")
        )
        watch = FirstLives(world, own) if kill.kind == "none" else None
        state = _end(world, cases, dag_run, started, watch)
        while state == "failed" and kill.kind in CLEARED and own.may_be_cleared():
            # The job of the failed attempt is stopped, together with its engines.
            own.hit("clear", own.engines(), own=False)
            own.task.clear()
            state = _end(world, cases, dag_run, time.monotonic(), watch)
        seconds = time.monotonic() - started
        if hit is not None and kill.kind == "full":
            own.lose_opened(hit.at, small_disk.FULL)
    finally:
        for case in cases:
            world.live.remove(case.live)
    if watch is not None:
        watch.shorten(lives, kill.mode, seconds)
    left = _left_behind(cases, pace.keep_warm + _END_OF_KEPT) if pace.keep_warm else 0
    within = pace.flush_interval + _A_WRITE
    counts, found = [case.count(within) for case in cases], [case.found(state) for case in cases]
    return Result(
        **_identity(setting, kill),
        missed=missed,
        instant=round(hit.at - began, 1) if hit else 0.0,
        phase=hit.phase if hit else "",
        before=hit.rows if hit else 0,
        hits=[{**asdict(one), "at": round(one.at - began, 1)} for one in own.hits],
        state=state,
        rows=sum(len(case.source) for case in cases),
        needed=sum(len(case.prompts) for case in cases),
        replicas=1 if kill.kind == "mapped" else pace.replicas,
        left=left,
        lost_engines=sum(len(case.live.lost) for case in cases),
        tries=max(_retried(case.live.task.read)["try_number"] for case in cases),
        submissions=sum(len(case.live.submissions) for case in cases),
        seconds=round(seconds, 1),
        expected=round(lives.get(("run", kill.mode), seconds), 1),
        **_summed(counts),
        **_summed(found),
    )


def _summed(parts: Sequence[Count] | Sequence[Found]) -> dict[str, int]:
    return {name: sum(getattr(one, name) for one in parts) for name in vars(parts[0])}


def _start(setting: Setting, kill: Kill, folder: Path, evidence: list[Run], bound: float) -> list[Case]:
    """Trigger the DAG run and add it to `evidence`; return its tasks.

    :param bound: seconds that each attempt may take, for the kinds that need one.
    """
    world, pace = setting.world, setting.pace
    dag = f"{_DAGS.get(kill.kind, 'chaos')}_{kill.mode}"
    params: dict[str, Any] = pace.params(folder)
    bucket: Place | None = None
    mapped = kill.kind == "mapped"
    places = [folder / str(number) for number in range(MAPPED)] if mapped else [folder]
    sources = []
    for number, place in enumerate(places):
        place.mkdir(exist_ok=True)
        sources.append(write_source(place, pace.rows // len(places), MAPPED * kill.seed + number, pace.equal))
    if kill.store == "s3":
        source, bucket = bucket_with(world.lake, folder / "source")
        params |= {"source": source, "destination": bucket.uri, "aws_conn_id": AWS}
    if kill.kind == "suspended":
        params |= {"timeout": bound}
    if mapped:
        params |= {"replicas": 1}  # of each task
    if kill.kind == "full":
        small_disk.mount(folder / "destination")
    before: frozenset[str] = frozenset()
    if pace.keep_warm and not mapped:
        before = _leave_engines(world, f"chaos_{kill.mode}", params, folder)
    dag_run = _retried(lambda: world.airflow.api.trigger(dag, **params))
    evidence.append(dag_run)
    tasks = [dag_run.task("infer", number if mapped else -1) for number in range(len(places))]
    return [
        Case(
            Live(task, place, bound=bound, elsewhere=bucket, kept=bool(pace.keep_warm)),
            source,
            before,
            pace.steps,
        )
        for task, place, source in zip(tasks, places, sources, strict=True)
    ]


def _leave_engines(world: World, dag: str, params: dict[str, Any], folder: Path) -> frozenset[str]:
    """Let another run leave its engines for this one; return its submissions."""
    earlier = folder / "earlier"
    earlier.mkdir()
    write_source(earlier, _ROWS_BEFORE, 0)
    places = {name: str(earlier / name) for name in ("source", "destination")}
    before = _retried(lambda: world.airflow.api.trigger(dag, **{**params, **places, "aws_conn_id": None}))
    found: set[str] = set()

    def has_ended() -> bool:
        with suppress(httpx.HTTPError, AssertionError, ValueError):  # a head is being replaced
            found.update(job["submission_id"] for job in world.jobs.of(before.task("infer")))
        return before.state_if_known in RUN_ENDED

    wait_for("the run before", has_ended, _LONGEST)
    return frozenset(found)


def _left_behind(cases: Sequence[Case], seconds: float) -> int:
    """Wait for the end of warm engines; return how many are there after so many seconds."""
    ends = time.monotonic() + seconds
    while (left := sum(len(case.live.engines()) for case in cases)) and time.monotonic() < ends:
        time.sleep(_POLL_INTERVAL)
    return left


def _disturb(world: World, live: Live, kill: Kill, lives: Lives, rows: int) -> tuple[Hit | None, str]:
    """Kill at the planned share of the victim's life; return why that was not possible, if so."""
    begun = time.monotonic()
    is_over = _at_times(lambda: live.task.run.state_if_known in RUN_ENDED)

    while kill.kind in OWN and not world.victims(live, kill.kind):
        if is_over():
            return None, f"no {kill.kind} was seen before the run ended"
        time.sleep(_BIRTH_POLL_INTERVAL)
    if kill.kind == "full":
        if not _nearly_done(live, rows, is_over):
            return None, "the run ended before its rows were seen"
        instant = time.monotonic()
    else:
        instant = time.monotonic() + kill.share * lives[kill.kind, kill.mode]
        time.sleep(max(0.0, instant - time.monotonic()))

    def is_late() -> bool:
        return is_over() or (kill.kind in OWN and time.monotonic() > instant + _LATE)

    hit = world.kill(live, kill.kind, kill.with_family, kill.choice, is_late)
    if hit is None:
        return None, f"the {kill.kind} was gone {time.monotonic() - begun:.1f} s after the run began"
    return hit, ""


def _at_times(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Ask Airflow's API once in `_POLL_INTERVAL`; who looks for a victim calls ten times a second."""
    asked, answer = float("-inf"), False

    def last() -> bool:
        nonlocal asked, answer
        if time.monotonic() >= asked + _POLL_INTERVAL:
            answer, asked = ask(), time.monotonic()
        return answer

    return last


def _nearly_done(live: Live, rows: int, is_over: Callable[[], bool]) -> bool:
    """Wait until nearly all rows are generated, shortly before they are published."""
    while not is_over():
        for _ in range(20):  # the disk must be filled soon after
            if generated_by_now(live.folder / "requests") >= _NEARLY * rows:
                return True
            time.sleep(_BIRTH_POLL_INTERVAL)
    return False


def _end(world: World, cases: Sequence[Case], dag_run: Run, started: float, watch: FirstLives | None) -> str:
    while time.monotonic() - started < _LONGEST:
        for case in cases:
            world.jobs_of(case.live)
        if watch is not None:
            watch.sample()
        state = dag_run.state_if_known
        if state in RUN_ENDED:
            return state
        time.sleep(_POLL_INTERVAL)
    return "still running"


def _retried(ask: Callable[[], Answer]) -> Answer:
    """Return the answer of Airflow's API, which may be unavailable for a while."""
    deadline = time.monotonic() + _LONGEST_AWAY
    while True:
        try:
            return ask()
        except httpx.ConnectError:  # no request was sent
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_INTERVAL)


def _evidence(dag_run: Run) -> str:
    try:
        return dag_run.evidence()
    except Exception as error:  # Airflow itself may be broken
        return repr(error)
