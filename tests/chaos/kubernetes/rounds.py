# SPDX-License-Identifier: Apache-2.0
"""One round: a task on the stand-in for a Kubernetes, what happens to it, and what is left of it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.kubernetes.kuberay.rayjob import TERMINAL
from airflow_provider_raybatch.kubernetes.kuberay.sweep import GRACE
from tests.support.kubernetes.clock import Clock, epoch_of
from tests.support.kubernetes.credentials import write_kubeconfig
from tests.support.kubernetes.role import LEASED_CLUSTERS, PROXY, role_rules
from tests.support.kubernetes.world import World, world

from . import processes
from .airflow import CONTEXT, Task
from .calls import Point
from .deeds import DEEDS, LOSES_JOB
from .lake import ROWS, Heads, Lake
from .plan import Round
from .processes import INSTALLATION, Setting

KINDS = ("RayJob", "RayCluster", "Secret", "Pod")
LONGEST = 2 * 86400.0
"""Seconds after which a cluster without a follower must be gone, whatever its deadline says."""
SETTLES = 6.0


@dataclass
class Result:
    """What became of a round.

    :param left: objects at the task's end, by kind.
    :param after_deadlines: those that were left once all deadlines were over.
    :param after_sweep: those that were left once the sweeper had run.
    :param clusters: RayClusters whose head came up.
    :param asked: requests that real engines began.
    :param most_of_a_run: jobs of the run that had most; each clear begins a run.
    :param kills: when, in which process and at which call it got SIGKILL.
    """

    seed: int
    mode: str
    kind: str
    told: str
    state: str = ""
    tries: int = 0
    killed: int = 0
    struck: int = 0
    missed: list[str] = field(default_factory=list)
    clusters: int = 0
    jobs: int = 0
    lost_jobs: int = 0
    most_of_a_run: int = 0
    most_at_once: int = 0
    rows: int = 0
    duplicated: int = 0
    expected_rows: int = 0
    asked: int = 0
    left: dict[str, int] = field(default_factory=dict)
    after_deadlines: dict[str, int] = field(default_factory=dict)
    after_sweep: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kills: list[tuple[str, str, str]] = field(default_factory=list)
    version: str = ""

    def line(self) -> str:
        """As a line of the results file."""
        return json.dumps(asdict(self))


def play(one: Round, keep: Path | None = None, *, real: bool = False) -> tuple[Result, list[Point]]:
    """Play a round on the stand-in.

    :param keep: where the folder of a flawed round goes.
    :param real: whether heads, jobs and rows are real.
    """
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    result = Result(one.seed, one.mode, one.kind, str(one))
    try:
        if one.shared:
            from . import dag_run

            task = dag_run.play_dag_run(one, folder, result)
        else:
            task = (_play_real if real else _play)(one, folder, result)
            result.flaws += flaws(task, result)
        result.seconds = round(time.monotonic() - began, 2)
        if result.flaws and keep is not None:
            shutil.copytree(folder, keep / f"{'real-' if real else ''}seed-{one.seed}", dirs_exist_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result, task.calls


def _play(one: Round, folder: Path, result: Result) -> Task:
    lake = Lake()
    arguments = {"source": "/in", "prompt": "Say {row.x}", "model": "m", "destination": "s3://lake/out/"}
    cluster = {"image": "rayproject/ray:2.60.0", "gpus_per_worker": 0, "dashboard_address": "proxy"}
    with world(runtime=Heads(lake), clock=Clock(shift=one.shift)) as kubernetes:
        given = {**arguments, "poll_interval": 0.1}
        task = task_of(one, setting_of(folder, kubernetes, one, None, cluster, given), kubernetes)
        task.run()
        until(lambda: lake.at_once == 0, 1.0)
        result.expected_rows = ROWS
        result.jobs, result.lost_jobs = len(lake.jobs), len(lake.lost)
        result.most_of_a_run = most_of_a_run(lake.jobs)
        result.most_at_once = lake.most_at_once
        result.rows, result.duplicated = len(lake.written), sum(lake.written.values()) - len(lake.written)
        judge_end(result, task, kubernetes, SETTLES)
    return task


def _play_real(one: Round, folder: Path, result: Result) -> Task:
    from . import real

    lake = real.RealLake(folder)
    source, given = real.arguments(folder, one.seed)
    with real.real_world(folder, one.shift, lake) as (kubernetes, authority):
        setting = setting_of(folder, kubernetes, one, authority, real.cluster(), given)
        task = task_of(one, setting, kubernetes, limit=150.0)
        task.run()
        lake.judge(source, task.result)
        result.expected_rows = len(source)
        result.jobs, result.most_at_once = len(lake.jobs), lake.most_at_once
        result.most_of_a_run = most_of_a_run(name for _, name in lake.jobs)
        losses = sum(hit and strike.deed in LOSES_JOB | {"late", "clear"} for strike, hit in task.struck)
        result.lost_jobs = min(losses, max(0, result.jobs - 1))
        result.rows, result.duplicated, result.asked = lake.rows, lake.duplicated + lake.wrong, lake.asked
        judge_end(result, task, kubernetes, 4 * SETTLES)
        if (alive := kubernetes.runtime.living()) and not result.after_sweep:
            until(lambda: not kubernetes.runtime.living(), 30.0)
            alive = kubernetes.runtime.living()
        if alive:
            result.flaws.append(f"{alive} pods have processes left")
    return task


def task_of(one: Round, setting: Setting, kubernetes: World, limit: float = 120.0) -> Task:
    return Task(
        setting,
        happens=lambda deed: DEEDS[deed](kubernetes),
        late=lambda: _pass_time(kubernetes, LONGEST),
        limit=limit,
    )


def setting_of(
    folder: Path,
    kubernetes: World,
    one: Round,
    authority: Path | None,
    cluster: dict[str, Any],
    arguments: dict[str, Any],
) -> Setting:
    rules = role_rules(PROXY, LEASED_CLUSTERS) if one.shared else role_rules(PROXY)
    kubernetes.server.access.grant("airflow", rules, namespace="default", token="t")
    config = write_kubeconfig(folder / "config", kubernetes.web.url, token="t", authority=authority)
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(config)}}
    return Setting(
        folder=folder,
        env={
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
            "AIRFLOW_VAR_RAYBATCH_INSTALLATION_ID": INSTALLATION,
        },
        cluster=cluster,
        arguments=arguments,
        deferrable=one.mode == "deferrable",
        strikes=list(one.strikes),
    )


def _pass_time(kubernetes: World, seconds: float) -> None:
    kubernetes.server.clock.advance(seconds)
    time.sleep(0.5)


def judge_end(result: Result, task: Task, kubernetes: World, settles: float) -> None:
    result.state, result.tries, result.killed = task.state, task.tries, task.killed
    result.struck = sum(hit for _, hit in task.struck)
    result.missed = [str(one.point) for one in task.setting.strikes]
    result.missed += [f"{one.deed} at {one.point}" for one, hit in task.struck if not hit]
    result.kills = [
        (strike.when, strike.point.role, strike.point.call)
        for strike, _ in task.struck
        if strike.deed in {"kill", "late", "orphan"}
    ]
    result.clusters = len(kubernetes.runtime.clusters)
    result.errors = [one[:300] for one in task.errors]
    until(lambda: not any(_left(kubernetes).values()), settles if result.state == "success" else settles / 3)
    result.left = _left(kubernetes)
    _clean_up(result, task.setting, kubernetes, settles)


def _left(kubernetes: World) -> dict[str, int]:
    found = {kind: len(kubernetes.store.all(kind)) for kind in KINDS}  # type: ignore[arg-type]
    return {kind: number for kind, number in found.items() if number}


def _clean_up(result: Result, setting: Setting, kubernetes: World, settles: float) -> None:
    """Let the deadlines of what is left pass, and then the sweeper run."""
    kubernetes.kuberay_down = False
    if result.left:
        _pass_deadlines(kubernetes, settles)
        result.after_deadlines = _left(kubernetes)
    if result.after_deadlines:
        kubernetes.server.clock.advance(GRACE + 3600.0)
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=processes.sweeper, args=(setting, theirs))
        process.start()
        theirs.close()
        told: Any = None
        try:
            while told is None or told[0] == "call":
                told = ours.recv()
        except EOFError:
            told = ("error", "the sweeper died")
        process.join()
        if told[0] != "swept":
            result.errors.append(f"sweeper: {told[1]}")
        until(lambda: not _left(kubernetes), settles)
        result.after_sweep = _left(kubernetes)


def _pass_deadlines(kubernetes: World, settles: float) -> None:
    """Set the clock forward until KubeRay has nothing more to end."""

    def over() -> bool:
        jobs = kubernetes.store.all("RayJob")
        return all(one.get("status", {}).get("jobDeploymentStatus") in TERMINAL for one in jobs) and not (
            kubernetes.store.all("RayCluster") or kubernetes.store.all("Pod")
        )

    clock = kubernetes.server.clock
    begin = clock.now()
    for _ in range(6):
        ends = [_end_of(one, clock.now()) for one in kubernetes.store.all("RayJob")]
        latest = min(max(ends, default=clock.now()), begin + LONGEST)
        clock.advance(max(0.0, latest - clock.now()) + 1.0)
        if until(over, settles / 4):
            return


def _end_of(rayjob: dict[str, Any], now: float) -> float:
    """When KubeRay ends a RayJob, or its cluster, as its spec says."""
    spec, status = rayjob["spec"], rayjob.get("status", {})
    ttl = spec.get("ttlSecondsAfterFinished") or 0
    if status.get("endTime"):
        return epoch_of(status["endTime"]) + ttl
    if not status.get("startTime"):
        return now
    field_of = "preRunning" if status.get("jobDeploymentStatus") == "Waiting" else "active"
    return epoch_of(status["startTime"]) + (spec.get(f"{field_of}DeadlineSeconds") or LONGEST)


def until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def most_of_a_run(submission_ids: Iterable[str]) -> int:
    """The most jobs that one run had: their ids differ in the number alone, and a clear begins a run."""
    return max(Counter(name.rpartition("-")[0] for name in submission_ids).values(), default=0)


def flaws(task: Task, result: Result) -> list[str]:
    """What was promised, and did not hold."""
    found = []
    deeds = {strike.deed for strike, hit in task.struck if hit}
    expected = "failed" if deeds & {"fail", "orphan"} else "success"
    if result.state != expected:
        found.append(f"state={result.state}")
    if result.state == "success" and result.rows != result.expected_rows:
        found.append(f"rows={result.rows} of {result.expected_rows}")
    if result.duplicated:
        found.append(f"duplicated={result.duplicated}")
    if result.most_at_once > 1:
        found.append(f"jobs at once={result.most_at_once}")
    # A job may also have ended well, and its cluster have gone before its result was read.
    unread = sum(hit and strike.deed in LOSES_JOB | {"late"} for strike, hit in task.struck)
    cleared = sum(hit and strike.deed == "clear" for strike, hit in task.struck)
    if result.most_of_a_run > 1 + unread or result.jobs > 1 + cleared + unread:
        found.append(f"jobs={result.jobs}, lost={result.lost_jobs}")
    if result.lost_jobs and not deeds & {*LOSES_JOB, "late", "orphan", "fail", "clear"}:
        found.append(f"lost jobs={result.lost_jobs} without a reason")
    if result.state == "success" and result.left:
        found.append(f"left after success={result.left}")
    return found + left_behind(result)


def left_behind(result: Result) -> list[str]:
    """What no round may leave: a cluster after its deadlines, anything after the sweeper, or a hang."""
    found = []
    gone = {kind: n for kind, n in result.after_deadlines.items() if kind in {"RayCluster", "Pod"}}
    if gone:
        found.append(f"left after deadlines={gone}")
    if result.after_sweep:
        found.append(f"left after the sweeper={result.after_sweep}")
    found += [f"error: {error}" for error in result.errors if "no end within" in error or "sweeper" in error]
    return found
