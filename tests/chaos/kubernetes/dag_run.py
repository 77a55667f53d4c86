# SPDX-License-Identifier: Apache-2.0
"""One round with a DAG run: a setup makes a cluster, three batch inferences share it, a teardown deletes it.

Rows are generated, judged and embedded, each time from the dataset of the task before.

As in Airflow, a task whose upstream has failed does not run, and the teardown runs if the setup succeeded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.world import World, world

from .airflow import Task
from .lake import ROWS, Heads, Lake
from .plan import Recorded, Round, at_every_point
from .rounds import SETTLES, Result, judge_end, left_behind, most_of_a_run, setting_of, task_of, until

BATCHES: dict[str, dict[str, Any]] = {
    "generate": {"source": "/in", "prompt": "Say {row.x}", "keep_warm": 600},
    "judge": {"prompt": "Judge {row.response}", "output_prefix": "judged_", "keep_warm": 0},
    "embed": {"prompt_column": "judged_response", "model_task": "embed", "output_prefix": "embed_"},
}
STEPS = ("create", *BATCHES, "delete")
KILLS = 64
_CLUSTER = {"image": "rayproject/ray:2.60.0", "gpus_per_worker": 0, "dashboard_address": "proxy"}


def shared_rounds(known: Recorded) -> list[Round]:
    """SIGKILL at :data:`KILLS` points, spread over all calls of a DAG run in both modes.

    Of ten killed processes, eight have a successor at once, one has none, and one has it after the lease.
    """
    points = at_every_point(known)
    found = []
    for seed in range(KILLS):
        one = points[seed * len(points) // KILLS]
        (strike,) = one.strikes
        struck = replace(strike, deed={8: "orphan", 9: "late"}.get(seed % 10, "kill"))
        found.append(Round(seed, one.mode, (struck,), shared=True))
    return found


def play_dag_run(one: Round, folder: Path, result: Result) -> Task:
    """Play a round; return its tasks as if they were one."""
    lake = Lake()
    with world(runtime=Heads(lake), clock=Clock(shift=one.shift)) as kubernetes:
        tasks = _tasks(one, folder, kubernetes)
        until(lambda: lake.at_once == 0, 1.0)
        result.expected_rows = ROWS * len(BATCHES)
        result.jobs, result.lost_jobs = len(lake.jobs), len(lake.lost)
        result.most_of_a_run, result.most_at_once = most_of_a_run(lake.jobs), lake.most_at_once
        result.rows, result.duplicated = len(lake.written), sum(lake.written.values()) - len(lake.written)
        total = _as_one(tasks)
        judge_end(result, total, kubernetes, SETTLES)
    result.flaws += _flaws(total, result)
    return total


def _tasks(one: Round, folder: Path, kubernetes: World) -> dict[str, Task]:
    """Run the tasks in their order."""
    tasks: dict[str, Task] = {}
    for step in STEPS:
        upstream = ["create"] if step == "delete" else list(tasks)
        if any(tasks[name].state != "success" for name in upstream):
            continue
        (folder / step).mkdir()
        given = {
            "source": list(tasks.values())[-1].result if tasks else None, "model": "m",
            "destination": f"s3://lake/{step}/", "poll_interval": 0.1, **BATCHES.get(step, {}),
        }  # fmt: skip
        setting = setting_of(folder / step, kubernetes, one, None, _CLUSTER, given)
        setting.step = step
        setting.strikes = [strike for strike in one.strikes if strike.point.role.startswith(f"{step} ")]
        setting.shared = tasks["create"].result if tasks else None
        tasks[step] = task_of(one, setting, kubernetes)
        tasks[step].run()
    return tasks


def _as_one(tasks: dict[str, Task]) -> Task:
    total = tasks["create"]
    for task in list(tasks.values())[1:]:
        total.calls += task.calls
        total.struck += task.struck
        total.errors += task.errors
        total.killed += task.killed
        total.tries = max(total.tries, task.tries)
        total.setting.strikes += task.setting.strikes
    every = len(tasks) == len(STEPS) and all(task.state == "success" for task in tasks.values())
    total.state = "success" if every else "failed"
    return total


def _flaws(total: Task, result: Result) -> list[str]:
    """What was promised, and did not hold."""
    found = []
    hits = [strike for strike, hit in total.struck if hit]
    orphan = {strike.point.role.partition(" ")[0] for strike in hits if strike.deed == "orphan"}
    late = {strike.point.role.partition(" ")[0] for strike in hits if strike.deed == "late"}
    # A batch whose cluster went meanwhile says that the setup is to be cleared.
    expected = "failed" if orphan or late & set(BATCHES) else "success"
    if result.state != expected:
        found.append(f"state={result.state}")
    if late & set(BATCHES) and not any("clear the task 'create'" in error for error in total.errors):
        found.append(f"the lost cluster is not told of: {total.errors}")
    if result.state == "success" and result.rows != result.expected_rows:
        found.append(f"rows={result.rows} of {result.expected_rows}")
    if result.jobs > len(BATCHES) or result.most_of_a_run > 1:
        found.append(f"jobs={result.jobs}")
    if result.duplicated or result.most_at_once > 1:
        found.append(f"duplicated={result.duplicated}, jobs at once={result.most_at_once}")
    if result.clusters > 1 + len(late & {"create"}):
        found.append(f"clusters={result.clusters}")
    if not orphan & {"create", "delete"} and result.left:
        found.append(f"left={result.left}")
    return found + left_behind(result)
