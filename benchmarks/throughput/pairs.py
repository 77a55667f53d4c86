# SPDX-License-Identifier: Apache-2.0
"""Pairs of one ``LLM.generate`` with all rows and one job over them, in turns on one GPU.

A machine's speed drifts by some percent within minutes, so the two runs of a pair follow each other directly,
and a ratio is the median over pairs. Prints a JSON line per run as it ends, with the cores that its processes
used, and `ratios` at the end: seconds of ``LLM.generate`` by those of the job.

usage: pairs.py DATA_FOLDER OUT_FOLDER WORKLOAD [--pairs N] [--gpu N] [--cores FIRST:END] [--engine ARGS_JSON]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from cpu_rates import CpuRates
from two_gpus import HERE, environment, measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="pairs.py", description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("workload")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--cores", help="cores of the machine that all processes of both may use")
    parser.add_argument("--engine", default='{"load_format": "dummy"}')
    given = parser.parse_args()
    if given.cores:
        first, end = map(int, given.cores.split(":"))
        os.sched_setaffinity(0, range(first, end))
    Path(given.out).mkdir(parents=True, exist_ok=True)
    pairs = []
    for _ in range(given.pairs):
        with CpuRates("LLM.generate"):
            ceiling = by_llm(given.data, given.workload, given.engine, given.gpu)
        with CpuRates("job"):
            job = measured(given.data, given.out, given.workload, 1, given.engine, given.gpu)
        pairs.append((ceiling, job))
    ratios = [round(ceiling / job, 3) for ceiling, job in pairs]
    name = f"LLM.generate to job, {given.workload}" + (f", cores {given.cores}" if given.cores else "")
    print("RESULT", json.dumps({"pairs": pairs, "each": ratios, "ratios": {name: statistics.median(ratios)}}))


def by_llm(data: str, workload: str, engine: str, gpu: str) -> float:
    """Return the seconds of one ``LLM.generate`` with all rows."""
    command = [sys.executable, str(HERE / "llm_generate.py"), "--alone", data, workload, engine]
    output = subprocess.run(
        command, env=environment(gpu), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    print(line, flush=True)
    seconds: float = json.loads(line.removeprefix("RESULT "))["seconds"]
    return seconds


if __name__ == "__main__":
    main()
