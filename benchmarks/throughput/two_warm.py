# SPDX-License-Identifier: Apache-2.0
"""One warm engine and two, in turns on a machine with two GPUs: how close two come to twice the speed.

Engines that start begin at different times, and of a run of a dozen seconds a second is a lot. Here a job
before has left both engines (`keep_warm`), and GPUs that are warm: at their power limit, their clocks are
lower than those of cool ones. So all that is measured is how the rows are shared. With ``--half``, one engine
also gets half of the rows alone: what two could reach if neither were in the other's way. With ``--profile``,
a last turn shows what the engines' processes do (py-spy, which has to be installed); its seconds are in no
ratio.

Each job has other words (two VARIANTS of `workloads.py` a turn, three with ``--half``), and a driver of its
own, as every submitted job has: Ray starts the processes of all replicas anew. Prints a JSON line a job, one
of the cores that each kind of process uses, and one of each GPU; and `ratios` at the end, medians over the
turns: seconds of a job with one replica by those of the others that follow it.

usage: PYTHONPATH=. two_warm.py [--half] [--profile] DATA_FOLDER OUT_FOLDER ENGINE_ARGS_JSON TURNS WORKLOAD...
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from cpu_rates import CpuRates
from gpu_rates import GpuRates
from half_of_rows import half
from job import Task, start_cluster
from profiles import Profiles
from two_gpus import outcome
from workloads import variant_of

KEPT = 600
"""Seconds for which engines wait for the next job."""


def main() -> None:
    data, out, engine, turns, *names = [argument for argument in sys.argv[1:] if argument[:2] != "--"]
    fields = {"engine_args": json.loads(engine), "keep_warm": KEPT, "deduplicate": False}
    start_cluster(num_gpus=2, logging_level="error")

    def job(source: Path, replicas: int) -> float:
        """Return the seconds from the first request to the last finished row."""
        task = Task(source, Path(data) / "model", Path(out), {**fields, "replicas": replicas})
        title = f"{replicas} replicas, {source.name}"
        with CpuRates(title), GpuRates(title):
            found = outcome(task.run(), source.name)
        print("RESULT", json.dumps(found), flush=True)
        return float(found["seconds"])

    if "--profile" in sys.argv and shutil.which("py-spy") is None:
        raise SystemExit(
            "--profile: there is no py-spy on the PATH; install it, or measure without a profile."
        )
    job(Path(data) / names[0], 2)
    each: dict[str, list[float]] = {}
    variants_of = {name: variants_in(Path(data), name) for name in names}
    for name, variants in variants_of.items():
        for _ in range(int(turns)):
            one, two = job(next(variants), 1), job(next(variants), 2)
            each.setdefault(f"two GPUs to one, {name}, warm engines", []).append(round(one / two, 3))
            if "--half" in sys.argv:
                alone = job(half(next(variants), Path(out) / "half"), 1)
                each.setdefault(f"all rows to half of them, {name}", []).append(round(one / alone, 3))
    ratios = {name: statistics.median(values) for name, values in each.items()}
    print("RESULT", json.dumps({"each": each, "ratios": ratios}), flush=True)
    for (name, variants), replicas in itertools.product(variants_of.items(), (1, 2)):
        if "--profile" in sys.argv:
            with Profiles(f"{name}-{replicas}", Path(out) / "profiles"):
                job(next(variants), replicas)


def variants_in(data: Path, name: str) -> Iterator[Path]:
    """The folders of a workload with other words each."""
    return (data / variant_of(name, number) for number in itertools.count(1))


if __name__ == "__main__":
    main()
