# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.kubernetes.page FILE...``: the results as a page."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.table import machine

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Kills with clusters on Kubernetes

`make kubernetes-kills` runs one batch inference with `ray_cluster=KubeRayCluster(...)` a round, and kills
it, or what it stands on, at a call to Kubernetes or to the Jobs API. Real are: operator, triggers,
Kubernetes client, Jobs API client and sweeper, each in processes of their own that get SIGKILL; and HTTP.
**Stand-ins** are: Kubernetes and KubeRay (`tests/support/kubernetes/`), and Airflow's scheduler and
database (`tests/chaos/kubernetes/airflow.py`: attempts, retries, deferrals, marks, clears; a task's state
and its task state store are files). In the first table a head is a fake Jobs API, whose job writes twelve
rows; in the second heads are `ray start` processes, with the real driver, the `echo` engine and a dataset
on disk.

A round is *good* if the task ended as it should (success, or failed where a user said so), with each row
exactly once; no two jobs ran at once; no job was submitted but the first and one for each whose cluster was
lost before its result was read; after a success nothing was left; in all other cases no RayCluster and no
pod was left after its deadlines, and nothing at all after the sweeper had run. Pauses between two looks are
shortened, and the clock of the API server is set forward over the deadlines.
"""
_WHAT = {
    "nothing": "undisturbed",
    "worker": "SIGKILL of the task's process; its next attempt follows",
    "triggerer": "SIGKILL of the trigger's process; another one follows",
    "worker or triggerer while it stops the job": "a user marks it as failed; SIGKILL meanwhile",
    "worker, successor late": "SIGKILL; the next attempt comes after two days",
    "triggerer, successor late": "the same",
    "worker, no successor": "SIGKILL; the task fails, and no attempt follows",
    "triggerer, no successor": "the same",
    "answer lost": "the API server or head has acted, and the connection breaks",
    "marked failed": "a user marks the task as failed",
    "cleared": "a user clears the task",
    "API server": "it ends with all connections, and starts again from its store",
    "controller": "KubeRay's operator is away for a while",
    "head restarted": "the head's container ends, and starts without its jobs",
    "head preempted": "the head's pod is deleted for another one",
    "RayJob deleted": "by others",
    "RayCluster deleted": "by others",
    "evicted by Kueue": "the RayJob is suspended, and goes on a while later",
    "clock set forward": "the server's, by 20 minutes",
}


def page(stand_in: Sequence[dict[str, Any]], real: Sequence[dict[str, Any]], note: str) -> Iterator[str]:
    """Yield the page's lines."""
    yield _HEAD
    versions = ", ".join(dict.fromkeys(one["version"] for one in (*stand_in, *real)))
    yield f"{machine()} Of commit {versions}. {note}".rstrip()
    for title, lines in (("On fake heads", stand_in), ("On real Ray processes", real)):
        if not lines:
            continue
        flawed = [one for one in lines if one["flaws"]]
        yield f"\n## {title}\n"
        yield f"{summary_of(lines)}\n"
        yield from table_of(lines)
        if title == "On fake heads":
            yield "\n### By the call that is struck\n"
            yield from points_of(lines)
        if flawed:
            yield "\nRounds with flaws:\n"
            yield from (f"- {one['told']}: {', '.join(one['flaws'])}" for one in flawed)


def summary_of(lines: Sequence[dict[str, Any]]) -> str:
    over = sum(bool(_clusters(one["after_deadlines"])) for one in lines)
    swept = sum(bool(one["after_sweep"]) for one in lines)
    twice = sum(one["most_at_once"] > 1 for one in lines)
    lost = sum(one["expected_rows"] - one["rows"] for one in lines if one["state"] == "success")
    return (
        f"{len(lines)} rounds with {sum(one['struck'] for one in lines)} strikes, "
        f"{sum(map(_killed, lines))} of them SIGKILL: {sum(bool(one['flaws']) for one in lines)} with flaws; "
        f"{over} with a cluster left after its deadlines, {swept} with anything left after the sweeper, "
        f"{twice} with two jobs at once, {lost} rows lost, "
        f"{sum(one['duplicated'] for one in lines)} rows twice or wrong."
    )


def table_of(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = (
        "what happens", "rounds", "did not come by", "good", "succeeded", "failed", "most tries", "clusters",
        "jobs", "left by the task", "ended by KubeRay", "objects for the sweeper",
    )  # fmt: skip
    yield f"| {' | '.join(columns)} |"
    yield "| --- |" + " ---: |" * (len(columns) - 1)
    for kind in [one for one in _WHAT if any(line["kind"] == one for line in lines)]:
        yield _row(f"**{kind}**: {_WHAT[kind]}", [line for line in lines if line["kind"] == kind])
    yield _row("all", lines)


def _row(title: str, lines: Sequence[dict[str, Any]]) -> str:
    cells = [
        title,
        len(lines),
        sum(bool(one["missed"]) for one in lines),
        sum(not one["flaws"] for one in lines),
        sum(one["state"] == "success" for one in lines),
        sum(one["state"] == "failed" for one in lines),
        max(one["tries"] for one in lines),
        sum(one["clusters"] for one in lines),
        sum(one["jobs"] for one in lines),
        sum(_clusters(one["left"]) for one in lines),
        sum(_clusters(one["left"]) - _clusters(one["after_deadlines"]) for one in lines),
        sum(sum(one["after_deadlines"].values()) for one in lines),
    ]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _killed(line: dict[str, Any]) -> int:
    return len(line["kills"])


def _clusters(left: dict[str, int]) -> int:
    return left.get("RayCluster", 0)


def points_of(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Calls at which processes are killed, before it is sent and after the server has acted."""
    good: Counter[tuple[str, str, str]] = Counter()
    bad: Counter[tuple[str, str, str]] = Counter()
    for one in lines:
        for when, role, call in one["kills"]:
            (bad if one["flaws"] else good)[role, call, when] += 1
    yield "SIGKILL before the call is sent, and after the act and before its answer: good rounds.\n"
    yield "| process | call | before | after the act |"
    yield "| --- | --- | ---: | ---: |"
    for role, call in sorted({key[:2] for key in (*good, *bad)}):
        cells = []
        for when in ("before", "after"):
            flawed = bad[role, call, when]
            cells.append(f"{good[role, call, when]}" + (f", {flawed} flawed" if flawed else ""))
        yield f"| {role} | `{call}` | {' | '.join(cells)} |"


def main() -> None:
    *files, note = sys.argv[1:]
    stand_in, real = (
        [json.loads(line) for line in Path(file).read_text().splitlines()] if Path(file).exists() else []
        for file in files
    )
    print(*page(stand_in, real, note), sep="\n")


if __name__ == "__main__":
    main()
