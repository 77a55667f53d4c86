# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.kubernetes --seeds 0:200 --results FILE``: kills of tasks with own clusters."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Round
    from .rounds import Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FROM:TO, one round per seed, without TO")
    parser.add_argument("--results", type=Path, required=True, help="a file to which each round adds a line")
    parser.add_argument("--parallel", type=int, default=2, help="rounds at once")
    parser.add_argument("--real", action="store_true", help="on real Ray processes, 41 rounds: --seeds 0:41")
    parser.add_argument(
        "--shared", action="store_true", help="of DAG runs that share a cluster: --seeds 0:64"
    )
    parser.add_argument("--list", action="store_true", help="print the rounds, and play none")
    given = parser.parse_args()
    first, _, end = given.seeds.partition(":")
    home = tempfile.mkdtemp(prefix="kills-airflow-")
    os.environ |= {"AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    try:
        return _play_all(range(int(first), int(end)), given)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _play_all(seeds: range, given: argparse.Namespace) -> int:
    from tests.chaos.version import version

    from .dag_run import shared_rounds
    from .journeys import recorded, recorded_dag_run, round_of

    if given.shared:
        rounds = shared_rounds(recorded_dag_run())[seeds.start : seeds.stop]
    else:
        known = recorded()
        rounds = [round_of(seed, known, real=given.real) for seed in seeds]
    if given.list:
        print(*rounds, sep="\n")
        return 0
    file: Path = given.results
    code, flawed = version(), 0
    file.parent.mkdir(parents=True, exist_ok=True)
    for result in _together(rounds, given.parallel, file.parent / "flawed", given.real):
        result.version = code
        flawed += bool(result.flaws)
        with file.open("a") as lines:
            lines.write(result.line() + "\n")
        print(result.told, "|", result.state, f"{result.seconds} s", *result.flaws, flush=True)
    print(f"{len(rounds)} rounds, {flawed} flawed")
    return 1 if flawed else 0


def _together(rounds: Sequence[Round], parallel: int, keep: Path, real: bool) -> Iterator[Result]:
    from .airflow import CONTEXT
    from .rounds import play

    with ProcessPoolExecutor(parallel, mp_context=CONTEXT) as pool:
        playing = [pool.submit(play, one, keep, real=real) for one in rounds]
        for ended in as_completed(playing):
            yield ended.result()[0]


if __name__ == "__main__":
    sys.exit(main())
