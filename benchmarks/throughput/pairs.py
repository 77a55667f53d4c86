# SPDX-License-Identifier: Apache-2.0
"""Pairs of one ``LLM.generate`` with all rows and one job over them, in turns on one GPU.

A machine's speed drifts by some percent within minutes, so the two runs of a pair follow each other directly,
and a ratio is the median over pairs. Prints a JSON line per run as it ends, with the cores that its processes
used, and `ratios` at the end: seconds of ``LLM.generate`` by those of the job.

Each run starts its engine. With ``--resident`` both engines are made once and share the GPU, and the one
that has no work waits: give each less than half of the memory (``gpu_memory_utilization``). Pairs follow each
other within a minute then, each with other words (as many VARIANTS of `workloads.py` as pairs).

usage: pairs.py DATA OUT WORKLOAD [--pairs N] [--gpu N] [--cores FIRST:END] [--engine ARGS_JSON] [--resident]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cpu_rates import CpuRates
from start_up import some
from two_gpus import HERE, SAMPLING_OF_ROWS, environment, measured, result, start_ray
from workloads import variant_of

_KEPT = 600
_LLM = [sys.executable, str(HERE / "llm_generate.py")]

Pairs = Iterator[tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="pairs.py", description=__doc__)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("workload")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--cores", help="cores of the machine that all processes of both may use")
    parser.add_argument("--engine", default='{"load_format": "dummy"}')
    parser.add_argument("--resident", action="store_true", help="make both engines once")
    given = parser.parse_args()
    if given.cores:
        first, end = map(int, given.cores.split(":"))
        os.sched_setaffinity(0, range(first, end))
    Path(given.out).mkdir(parents=True, exist_ok=True)
    pairs = list(resident_pairs(given) if given.resident else fresh_pairs(given))
    ratios = [round(ceiling / job, 3) for ceiling, job in pairs]
    name = f"LLM.generate to job, {given.workload}" + (f", cores {given.cores}" if given.cores else "")
    print("RESULT", json.dumps({"pairs": pairs, "each": ratios, "ratios": {name: statistics.median(ratios)}}))


def fresh_pairs(given: argparse.Namespace) -> Pairs:
    """Each run starts its engine."""
    for _ in range(given.pairs):
        command = [*_LLM, "--alone", given.data, given.workload, given.engine]
        with CpuRates("LLM.generate"):
            output = subprocess.run(
                command, env=environment(given.gpu), stdout=subprocess.PIPE, text=True, check=True
            ).stdout
        (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
        print(line, flush=True)
        with CpuRates("job"):
            job = measured(given.data, given.out, given.workload, 1, given.engine, given.gpu)
        yield _seconds(line), job


def resident_pairs(given: argparse.Namespace) -> Pairs:
    """Both engines share the GPU, and work in turns."""
    command = [*_LLM, "--asked", given.data, given.engine]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(given.gpu), stdin=pipe, stdout=pipe, text=True) as llm:
        assert llm.stdin is not None
        assert llm.stdout is not None
        _until("READY", llm.stdout)
        os.environ |= environment(given.gpu)
        start_ray(gpus=1)
        data, out = Path(given.data), Path(given.out)
        fields = {"engine_args": json.loads(given.engine), "keep_warm": _KEPT, **json.loads(SAMPLING_OF_ROWS)}
        few = some(data / given.workload, out / "rows")
        result(few.parent, out, few.name, 1, {**fields, "model": str(data / "model")})
        for number in range(1, given.pairs + 1):
            name = variant_of(given.workload, number)
            with CpuRates("LLM.generate"):
                print(name, file=llm.stdin, flush=True)
                line = _until("RESULT ", llm.stdout)
            print(line, flush=True)
            with CpuRates("job"):
                found = result(data, out, name, 1, fields)
            print("RESULT", json.dumps(found), flush=True)
            yield _seconds(line), found["seconds"]
        llm.stdin.close()
        llm.stdout.read()  # what it says at its end


def _until(begins: str, lines: Iterator[str]) -> str:
    for line in lines:
        if line.startswith(begins):
            return line.strip()
    raise SystemExit("LLM.generate failed; see above")


def _seconds(line: str) -> float:
    seconds: float = json.loads(line.removeprefix("RESULT "))["seconds"]
    return seconds


if __name__ == "__main__":
    main()
