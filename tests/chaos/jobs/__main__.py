# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.jobs --results FILE``: kills of whole jobs with steps, pictures and adapters."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from tests.integration.end_to_end.waiting import all_at_once
from tests.support.local_ray import start_ray

from ..places import PHASES
from ..results import append_line, read_lines
from ..table import machine
from ..version import DIRTY, version
from .killing import VICTIMS, ZEROS, play
from .workload import KINDS

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Kills of jobs with steps, pictures and adapters

`make job-kills` runs whole jobs of the `echo` engine, and kills each one to three times with SIGKILL at
random instants, until it ends. A *job* is one process, forked for each attempt, without a cluster; on a real
Ray, with two replicas, its *driver*, its *coordinator* or a *replica* dies. Pictures lie in files, and some
change, break, are mended or deleted meanwhile; one to three equal rows ask about each.
`tests/chaos/jobs/workload.py` has the rows and their right answers, `tests/chaos/jobs/killing.py` the counts,
which go by the engines' logs and the files on disk. *Failed* are attempts in which nothing was killed; the
next one goes on. *Equal* are requests that another row had asked, too:
about a picture that has changed meanwhile.
"""
_SUMS = ("attempts", "failed", "rows", "dead_letters", "asked", "in_flight", "equal", *ZEROS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.jobs", description=__doc__)
    parser.add_argument("--seeds", default="0:8", help="FROM:TO, a task for each seed, without TO")
    parser.add_argument("--real", default="0:0", help="FROM:TO, the same on a real Ray, afterwards")
    parser.add_argument("--results", type=Path, required=True, help="a file to which each task adds a line")
    parser.add_argument("--parallel", type=int, default=2, help="tasks at once; on Ray one")
    parser.add_argument("--page", type=Path, help="a file for the table of all results")
    given = parser.parse_args()
    code = version()
    lines = [one for one in read_lines(given.results) if one["version"] == code and DIRTY not in code]
    done = {(one["seed"], one["real"]) for one in lines if not one["flaws"]}

    def run(seeds: str, life: float, parallel: int, cluster: str | None) -> None:
        first, _, end = seeds.partition(":")
        lives = dict.fromkeys(KINDS, life)

        def one(seed: int) -> None:
            if (seed, cluster is not None) not in done:
                append_line(given.results, line := play(seed, code, lives, cluster))
                print(line, flush=True)

        all_at_once(one, range(int(first), int(end)), parallel)

    if given.real != "0:0":
        start_ray(4)  # first: what forks jobs keeps the environment, with the cluster's token, from its start
        run(given.real, 30.0, 1, ray.get_runtime_context().gcs_address)
    run(given.seeds, 2.0, given.parallel, None)
    lines = read_lines(given.results)
    if given.page is not None:
        given.page.write_text("\n".join(page(lines)) + "\n")
    flawed = sum(bool(one["flaws"]) for one in lines)
    print(f"job kills: kills={sum(len(one['hits']) for one in lines)} tasks={len(lines)} flawed={flawed}")
    return 1 if flawed else 0


def page(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield _HEAD
    commits = ", ".join(dict.fromkeys(one["version"] for one in lines))
    yield f"{machine()} Commit {commits}, {sum(len(one['hits']) for one in lines)} kills.\n"
    heads = ["job", "killed", "tasks", *PHASES, *_SUMS]
    yield f"| {' | '.join(heads).replace('_', ' ')} |"
    yield "| --- | --- |" + " ---: |" * (len(heads) - 2)
    for kind, victim in itertools.product(KINDS, ("job", *VICTIMS)):
        some = [one for one in lines if one["kind"] == kind and victim in dict(one["hits"])]
        phases = [phase for one in some for _, phase in one["hits"]]
        sums = [sum(one[name] for one in some) for name in _SUMS]
        cells = [kind, victim, len(some), *map(phases.count, PHASES), *sums]
        yield from [f"| {' | '.join(map(str, cells))} |"] if some else []
    yield from (f"\n- seed {one['seed']} ({one['kind']}): {one['flaws']}" for one in lines if one["flaws"])


if __name__ == "__main__":
    sys.exit(main())
