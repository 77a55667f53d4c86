# SPDX-License-Identifier: Apache-2.0
"""What becomes of a GPU that a warm engine holds: handed on, made room with, and freed after each death.

On a Ray of its own with one GPU. Prints a JSON line a step: seconds, the processes that are vLLM's engine,
and the MiB that NVML counts on the GPU (``null`` without one). Fails where a row is lost, or a step's engine
is not the one that it should be.

usage: warm_on_gpu.py DATA_FOLDER OUT_FOLDER WORKLOAD [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from job import Task, start_cluster
from start_up import some

from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry

KEPT = 600
LONGEST = 180.0
_MIB = 2**20


class Steps:
    """One after the other, on one GPU.

    :param few: 64 rows; `many`, the whole workload.
    """

    def __init__(self, few: Path, many: Path, model: Path, out: Path, engine: dict[str, Any]) -> None:
        self._few, self._many, self._model, self._out, self._engine = few, many, model, out, engine

    def run(self) -> None:
        """Run all steps."""
        first = self._step("job that makes an engine", self._job)
        again = self._step("job that takes it", self._job)
        assert first == again, "the engine was not handed on"
        waits = ray.remote(num_cpus=0, num_gpus=1)(_used)
        self._step("task that needs the GPU", lambda: ray.get(waits.remote(), timeout=LONGEST))
        assert not _engines(), "the engine was not ended"
        made = self._step("job after that", self._job)
        self._step("SIGKILL to vLLM's engine at rest", lambda: self._kill(made))
        third = self._step("job after that", self._job)
        assert third != made, "a dead engine was handed on"
        self._step("SIGKILL to a replica at work", self._kill_replica)
        self._step("job with keep_warm=0", lambda: self._job(keep_warm=0))
        self._step("its end", lambda: _until(lambda: not (_engines() or WarmEngineRegistry().states())))

    def _step(self, name: str, does: Callable[[], object]) -> set[int]:
        began = time.monotonic()
        does()
        seconds = round(time.monotonic() - began, 2)
        line = {"step": name, "seconds": seconds, "engines": len(_engines()), "gpu_mib": _used()}
        print("RESULT", json.dumps(line), flush=True)
        return _engines()

    def _task(self, rows: Path, keep_warm: float = KEPT) -> Task:
        return Task(rows, self._model, self._out, {"engine_args": self._engine, "keep_warm": keep_warm})

    def _job(self, keep_warm: float = KEPT) -> None:
        manifest = self._task(self._few, keep_warm).run()
        _whole(manifest)
        print("RESULT", json.dumps({"phases": manifest["timing"]["phases"]}), flush=True)

    def _kill(self, pids: set[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        _until(lambda: not WarmEngineRegistry().states())

    def _kill_replica(self) -> None:
        """When the first part is written."""
        task = self._task(self._many)
        driver = task.start(stdout=subprocess.DEVNULL)
        _until(lambda: list(task.destination.glob("_raybatch/parts/**/*.parquet")))
        (pid,) = _titled("MapWorker(MapBatches(Replica(")
        os.kill(pid, signal.SIGKILL)
        assert driver.wait() == 0, "the job did not outlive its replica"
        _whole(task.manifest())


def _whole(manifest: dict[str, Any]) -> None:
    counts = manifest["counts"]
    assert counts["ok"] == counts["input"], f"rows are lost: {counts}"


def _engines() -> set[int]:
    return set(_titled("EngineCore"))


def _titled(name: str) -> list[int]:
    """Processes below this one, which is its Ray's parent."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _used() -> int | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(device).used) // _MIB
    except Exception:  # of a machine without one
        return None


def _until(happens: Callable[[], object]) -> None:
    ends = time.monotonic() + LONGEST
    while not happens():
        assert time.monotonic() < ends, "nothing happened"
        time.sleep(0.05)


def main() -> None:
    data, out, workload, *rest = sys.argv[1:]
    engine = json.loads(rest[0]) if rest else {"load_format": "dummy"}
    start_cluster(num_gpus=1, log_to_driver=False)
    many = Path(data) / workload
    Steps(some(many, Path(out) / "rows"), many, Path(data) / "model", Path(out), engine).run()


if __name__ == "__main__":
    main()
