# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos --seeds 0:100 --results FILE``: kills at random, and the count of what that cost."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import results
from .plan import MODES, Kill, plan
from .runs import run
from .workload import Pace
from .world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:7", help="FROM:TO, one run a seed; TO is left out")
    parser.add_argument("--results", type=Path, required=True, help="a file to which each run adds a line")
    parser.add_argument("--parallel", type=int, default=3, help="runs at once")
    parser.add_argument("--rows", type=int, default=Pace.rows)
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    kills = [plan(seed) for seed in range(int(first), int(end))]
    run_all(kills, given.results, given.parallel, Pace(rows=given.rows))
    runs, stops = results.read(given.results)
    flawed = [one for one in runs if one.flaws]
    for one in flawed:
        print(f"seed {one.seed} ({one.kind}, {one.mode}): {', '.join(one.flaws)}")
    print(results.summary(runs, stops))
    return 1 if flawed else 0


def run_all(kills: list[Kill], file: Path, parallel: int, pace: Pace) -> None:
    """One run a kill, several at once, each noted as it ends; before them, runs that set the pace."""
    evidence = file.parent / "flawed"

    def one(kill: Kill, expected: float) -> float:
        result = run(world, pace, kill, expected, evidence)
        results.append_run(file, result)
        flaws = f"; FLAWS: {', '.join(result.flaws)}" if result.flaws else ""
        print(
            f"seed {kill.seed}: {result.kind} killed={result.killed} at {result.instant:.0f} s ({kill.mode}), "
            f"hits {'+'.join(result.hits) or 'none'}; {result.seconds:.0f} s, "
            f"{result.generated}/{result.rows}+{result.in_flight} generated, {result.submissions} jobs, "
            f"{result.tries} tries{flaws}",
            flush=True,
        )
        return result.seconds

    # Each run may have all its replicas on one node while the other one is being replaced.
    with World(cpus=parallel * pace.replicas) as world, ThreadPoolExecutor(parallel) as pool:
        paces = [Kill(-1 - n, "none", MODES[n % len(MODES)], 0, False, 0) for n in range(parallel)]
        expected = max(pool.map(one, paces, [0.0] * parallel))
        if evidence.exists():
            raise SystemExit(f"An undisturbed run went wrong; see {evidence}.")
        list(pool.map(one, kills, [expected] * len(kills)))


if __name__ == "__main__":
    sys.exit(main())
