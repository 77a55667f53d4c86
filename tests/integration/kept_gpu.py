# SPDX-License-Identifier: Apache-2.0
"""A kept engine on a Ray with one GPU, which is only a number; prints what it saw.

A program of its own, since a process has one Ray. Usage: ``kept_gpu.py FOLDER``
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import ray

from airflow_provider_raybatch.job.execution.kept.taking import kept
from tests.support.repeated_task import RepeatedTask

ON_A_GPU = {"tensor_parallel_size": 1}


@ray.remote(num_cpus=0, num_gpus=1)
def gpu() -> str:
    return "a GPU"


def free() -> float:
    return ray.available_resources().get("GPU", 0.0)


def main(folder: Path) -> dict[str, object]:
    task = RepeatedTask(folder)
    task.input([f"text {number}" for number in range(40)])
    task.run("one", keep_warm=600, engine_args=ON_A_GPU)
    seen: dict[str, object] = {"free": free(), "kept": len(list(kept()))}
    started = time.monotonic()
    seen["task"] = ray.get(gpu.remote(), timeout=120)
    seen["seconds"] = time.monotonic() - started
    task.run("two", run_id="r2", keep_warm=600, engine_args=ON_A_GPU)
    seen["kept again"] = len(list(kept()))
    task.run("three", run_id="r3", engine_args={**ON_A_GPU, "max_num_seqs": 7})
    seen["kept in the end"] = len(list(kept()))
    return seen


if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    print(json.dumps(main(Path(sys.argv[1]))))
