# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos --seeds 0:100 --results FILE``: stops and random kills, and their cost."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from . import results
from .lives import Lives
from .plan import MODES, Kill, plan
from .result import Result
from .runs import Setting, together
from .small_disk import in_own_namespace
from .stopping import bounds, deeds
from .version import version
from .workload import Pace
from .world import World

LISTED = ("run", "worker", "driver", "engine")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", default="0:7", help="FROM:TO, one run per seed, without TO")
    parser.add_argument("--results", type=Path, required=True, help="a file to which each run adds a line")
    parser.add_argument("--parallel", type=int, default=3, help="runs at once")
    parser.add_argument("--rows", type=int, default=Pace.rows)
    parser.add_argument("--replicas", type=int, default=Pace.replicas)
    parser.add_argument("--spread", type=float, default=0.0, help="seconds within which engines start")
    parser.add_argument("--keep-warm", type=float, default=0.0, help="seconds for which engines stay warm")
    parser.add_argument("--equal", type=int, default=1, help="so many rows ask the same")
    parser.add_argument("--steps", action="store_true", help="ask two questions about each row")
    parser.add_argument("--early", action="store_true", help="kill while engines start")
    parser.add_argument("--faults", default="0:0", help="FROM:TO, seeds of other faults, afterwards")
    parser.add_argument("--no-stops", action="store_true", help="leave out the ways of stopping")
    given = parser.parse_args()
    faults = [plan(seed, faults=True) for seed in _range(given.faults)]
    if faults:
        in_own_namespace("tests.chaos", sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kills = [plan(seed, early=given.early) for seed in _range(given.seeds)] + faults
    pace = Pace(
        rows=given.rows,
        equal=given.equal,
        steps=given.steps,
        replicas=given.replicas,
        startup_spread=given.spread,
        keep_warm=given.keep_warm,
    )
    run_all(kills, given.results, given.parallel, pace, stops=not given.no_stops)
    runs, stops = results.read(given.results)
    flaws = [f"seed {one.seed} ({one.kind}, {one.mode}): {', '.join(one.flaws)}" for one in runs if one.flaws]
    flaws += [f"{one['way']} ({one['mode']}): {', '.join(one['flaws'])}" for one in stops if one["flaws"]]
    print(*flaws, results.summary(runs, stops), sep="\n")
    return 1 if flaws else 0


def _range(given: str) -> range:
    first, _, end = given.partition(":")
    return range(int(first), int(end))


def run_all(kills: list[Kill], file: Path, parallel: int, pace: Pace, stops: bool) -> None:
    """Start one run per kill, several at once, and note each as it ends; runs that set the pace come first.

    :param stops: whether a results file without stops gets them first.
    """
    # Read now, because the checkout may change during the runs.
    code = version()

    def note(result: Result) -> None:
        results.append(file, result)
        print(result, flush=True)

    # Each run may have all its replicas on one node while the other one is being replaced.
    with World(cpus=parallel * pace.replicas) as world:
        setting = Setting(world, pace, code, keep=file.parent / "flawed")
        if stops and not results.read(file)[1]:
            for stop in (*deeds(world), *bounds(world)):
                results.append(file, stop)
                print(stop, flush=True)
        lives: Lives = {}
        undisturbed = [
            Kill(-1 - n, "none", MODES[n % len(MODES)], 0, False, 0) for n in range(max(2, parallel))
        ]
        found = together(setting, undisturbed, parallel, lives, note)
        if any(one.flaws for one in found):
            raise SystemExit(f"An undisturbed run went wrong; see {setting.keep}.")
        print(
            *(f"{kind} ({mode}) lives {lives[kind, mode]:.1f} s" for kind in LISTED for mode in MODES),
            sep="\n",
        )
        together(setting, kills, parallel, lives, note)


if __name__ == "__main__":
    sys.exit(main())
