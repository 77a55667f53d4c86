# SPDX-License-Identifier: Apache-2.0
"""One kept engine and two, in turns on a machine with two GPUs: how close two come to twice the speed.

Engines that start begin at different times, and of a run of a dozen seconds a second is a lot. Here a job
before has left both engines (`keep_warm`), so all that is measured is how the rows are shared. Each job has
other words (two VARIANTS of `workloads.py` a turn). Prints a JSON line a job, and `ratios` at the end,
medians over the turns: seconds of a job with one replica by those of the job with two that follows it.

usage: two_kept.py DATA_FOLDER OUT_FOLDER ENGINE_ARGS_JSON TURNS WORKLOAD...
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from start_up import some
from two_gpus import SAMPLING_OF_ROWS, result, start_ray
from workloads import variant_of

KEPT = 600
"""Seconds for which engines wait for the next job."""


def main() -> None:
    data, out, engine, turns, *names = sys.argv[1:]
    fields = {"engine_args": json.loads(engine), "keep_warm": KEPT, **json.loads(SAMPLING_OF_ROWS)}
    start_ray(gpus=2)
    few = some(Path(data) / names[0], Path(out) / "rows")
    job(few.parent, few.name, 2, {**fields, "model": f"{data}/model"}, out)
    each: dict[str, list[float]] = {}
    for name in names:
        for turn in range(int(turns)):
            one, two = (
                job(Path(data), variant_of(name, 2 * turn + replicas), replicas, fields, out)
                for replicas in (1, 2)
            )
            each.setdefault(f"two GPUs to one, {name}, kept engines", []).append(round(one / two, 3))
    ratios = {name: statistics.median(values) for name, values in each.items()}
    print("RESULT", json.dumps({"each": each, "ratios": ratios}), flush=True)


def job(data: Path, name: str, replicas: int, fields: dict[str, Any], out: str) -> float:
    """Return the seconds from the first request to the last finished row."""
    found = result(data, Path(out), name, replicas, fields)
    print("RESULT", json.dumps(found), flush=True)
    return float(found["seconds"])


if __name__ == "__main__":
    main()
