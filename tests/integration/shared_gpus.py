# SPDX-License-Identifier: Apache-2.0
"""Engines with a share of a GPU, on a Ray with one GPU, which is only a number; prints what it saw.

A program of its own, since a process has one Ray. Usage: ``shared_gpus.py FOLDER SCENE...``
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from airflow_provider_raybatch.contract.manifest import BatchManifest
from tests.support.engine_log import Engine, engines
from tests.support.local_ray import start_ray
from tests.support.repeated_task import RepeatedTask
from tests.support.warm_engines import end_all, warm_engines

STARTUP = 1.0
ROWS = [f"text {number}" for number in range(16)]
HALF = {"num_gpus": 0.5, "num_cpus": 0.1, "replicas": 1}


def free() -> float:
    return float(ray.available_resources().get("GPU", 0.0))


def until(happens: Callable[[], Any], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < ends, (happens, free(), warm_engines())
        time.sleep(0.05)


class Job(threading.Thread):
    """A job beside the others.

    :ivar manifest: once it has succeeded.
    """

    def __init__(self, folder: Path, name: str, **fields: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.folder = folder / name
        self.folder.mkdir()
        self._task = RepeatedTask(self.folder)
        self._task.input(ROWS)
        self._fields = fields
        self.manifest: BatchManifest | None = None
        self.start()

    def run(self) -> None:
        self.manifest = self._task.run(self.name, self.name, **self._fields)

    def engines(self) -> list[Engine]:
        return engines(self.folder / "requests")

    def done(self) -> BatchManifest:
        self.join(90)
        assert self.manifest is not None, self.name
        return self.manifest


def gpus(manifest: BatchManifest) -> list[str]:
    return sorted(gpu for replica in manifest.replicas for gpu in replica.gpus)


def three_jobs(folder: Path) -> dict[str, Any]:
    """The first two share the GPU until the third has waited for it."""
    slow = {"seconds_per_token": 0.4, "max_num_seqs": 2, "startup_seconds": STARTUP}
    first = [Job(folder, name, **HALF, engine_args=slow) for name in ("one", "two")]
    until(lambda: free() == 0 and all(job.engines() for job in first))
    third = Job(folder, "three", **HALF, engine_args={})
    manifests = [job.done() for job in (*first, third)]
    one, two = (job.engines()[0] for job in first)
    late = third.engines()[0]
    ends = [engine.generated[-1][1] for engine in (one, two)]
    return {
        "gpus": [gpus(manifest) for manifest in manifests],
        "ok": [manifest.counts.ok for manifest in manifests],
        "shares": [manifest.replicas[0].gpu_share for manifest in manifests],
        "beside": max(one.opened, two.opened) < min(ends),
        "starts_apart": abs(one.opened - two.opened) >= STARTUP,
        "third_waited": late.opened > min(ends),
    }


def two_replicas(folder: Path) -> dict[str, Any]:
    """As many as the GPU holds."""
    slow = {"seconds_per_token": 0.4, "max_num_seqs": 2, "startup_seconds": STARTUP}
    job = Job(folder, "four", **{**HALF, "replicas": None}, engine_args=slow)
    manifest = job.done()
    first, second = sorted(engine.opened for engine in job.engines())
    held = (manifest.gpu_seconds or 0) / 2 / manifest.timing.total_seconds
    return {
        "gpus": gpus(manifest),
        "plan": manifest.plan["gpus_per_replica"]["value"],
        "rows": all(engine.asked for engine in job.engines()),
        "starts_apart": second - first >= STARTUP,
        "holds_halves": 0 < held < 0.6,
    }


def warm_half(folder: Path) -> dict[str, Any]:
    """It leaves the other half to a job with another engine, and ends for one that wants the whole GPU."""
    kept = Job(folder, "five", **HALF, keep_warm=600, engine_args={}).done()
    until(lambda: any(state is not None and state.is_free for state in warm_engines().values()))
    seen: dict[str, Any] = {"gpus": gpus(kept), "free": free(), "warm": len(warm_engines())}
    seen["beside"] = gpus(Job(folder, "six", **HALF, engine_args={"max_num_seqs": 2}).done())
    seen["still_warm"] = len(warm_engines())
    seen["whole"] = gpus(Job(folder, "seven", **{**HALF, "num_gpus": 1}, engine_args={}).done())
    seen["after"] = len(warm_engines())
    end_all()
    return seen


if __name__ == "__main__":
    place = Path(sys.argv[1])
    start_ray(cpus=2, gpus=1)
    scenes = {scene.__name__: scene for scene in (three_jobs, two_replicas, warm_half)}
    print(json.dumps({name: scenes[name](place) for name in sys.argv[2:]}))
