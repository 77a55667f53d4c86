# SPDX-License-Identifier: Apache-2.0
"""One kept engine and two, in turns on a machine with two GPUs: how close two come to twice the speed.

Engines that start begin at different times, and of a run of a dozen seconds a second is a lot. Here a job
before has left both engines (`keep_warm`), so all that is measured is how the rows are shared. Each job has
other words (two VARIANTS of `workloads.py` a turn), and a driver of its own, as every submitted job has: Ray
starts the processes of both replicas anew. Prints a JSON line a job, and `ratios` at the end, medians over
the turns: seconds of a job with one replica by those of the job with two that follows it.

usage: PYTHONPATH=. two_kept.py DATA_FOLDER OUT_FOLDER ENGINE_ARGS_JSON TURNS WORKLOAD...
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from job import Task, start_cluster
from start_up import some
from two_gpus import outcome
from workloads import variant_of

KEPT = 600
"""Seconds for which engines wait for the next job."""


def main() -> None:
    data, out, engine, turns, *names = sys.argv[1:]
    fields = {"engine_args": json.loads(engine), "keep_warm": KEPT, "deduplicate": False}
    start_cluster(num_gpus=2, logging_level="error")

    def job(source: Path, replicas: int) -> float:
        """Return the seconds from the first request to the last finished row."""
        task = Task(source, Path(data) / "model", Path(out), {**fields, "replicas": replicas})
        found = outcome(task.run(), source.name)
        print("RESULT", json.dumps(found), flush=True)
        return float(found["seconds"])

    job(some(Path(data) / names[0], Path(out) / "rows"), 2)
    each: dict[str, list[float]] = {}
    for name in names:
        for turn in range(int(turns)):
            one, two = (job(Path(data) / variant_of(name, 2 * turn + used), used) for used in (1, 2))
            each.setdefault(f"two GPUs to one, {name}, kept engines", []).append(round(one / two, 3))
    ratios = {name: statistics.median(values) for name, values in each.items()}
    print("RESULT", json.dumps({"each": each, "ratios": ratios}), flush=True)


if __name__ == "__main__":
    main()
