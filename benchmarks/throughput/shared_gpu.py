# SPDX-License-Identifier: Apache-2.0
"""Two replicas with warm engines on one GPU: when they begin and end, by length and in the order on disk.

For a machine that has one GPU: each replica has half of its memory, and both compute at once, so seconds say
nothing of two GPUs. How far apart they end does: they get their rows as on two. Each job has other words
(VARIANTS of `workloads.py`, two a turn). Prints a JSON line a job, and at the end `ratios`: medians of the
time between the two ends by the time of the job.

usage: CUDA_VISIBLE_DEVICES=0,0 shared_gpu.py DATA_FOLDER OUT_FOLDER ENGINE_ARGS_JSON TURNS WORKLOAD
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from unittest import mock

from start_up import some
from two_gpus import SAMPLING_OF_ROWS, result, start_ray
from workloads import variant_of

from airflow_provider_raybatch.job.row_order import regroup

KEPT = 600
"""Seconds for which engines wait for the next job."""


def main() -> None:
    data, out, engine, turns, name = sys.argv[1:]
    fields = {"engine_args": json.loads(engine), "keep_warm": KEPT, **json.loads(SAMPLING_OF_ROWS)}
    fields["model"] = f"{data}/model"
    start_ray(gpus=2)
    few = some(Path(data) / name, Path(out) / "rows")
    result(few.parent, Path(out), few.name, 2, fields)
    apart: dict[str, list[float]] = {"dealt": [], "on disk": []}
    variants = iter(range(1, 2 * int(turns) + 1))
    for _ in range(int(turns)):
        for order, values in apart.items():
            grouping_for = regroup.grouping_for if order == "dealt" else lambda *_: None
            with mock.patch.object(regroup, "grouping_for", grouping_for):
                found = result(Path(data), Path(out), variant_of(name, next(variants)), 2, fields)
            print("RESULT", json.dumps({"order": order, **found}), flush=True)
            values.append(found["ratios"]["ends_within"])
    ratios = {f"ends apart, {name}, {order}": statistics.median(values) for order, values in apart.items()}
    print("RESULT", json.dumps({"each": apart, "ratios": ratios}), flush=True)


if __name__ == "__main__":
    main()
