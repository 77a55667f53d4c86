# SPDX-License-Identifier: Apache-2.0
"""Resume once in this process, and measure time and memory: ours, and Ray Data's checkpoint."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from attempt import Attempt
from places import CHECKPOINT, INPUT, STORE, Place
from states import SUBMISSIONS


class Peak:
    """The peak memory of this process and all below it, above their memory at the start."""

    def __init__(self) -> None:
        self._least = self._most = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def mib(self) -> float:
        """Return the peak so far."""
        return (self._most - self._least) / 2**20

    @staticmethod
    def _now() -> int:
        total, me = 0, psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            time.sleep(0.05)


def _import() -> None:
    import airflow_provider_raybatch.job.phases.driver  # noqa: F401


def ours(place: Place, reuse: bool) -> dict[str, float]:
    """Resume in this process, and measure it."""
    from airflow_provider_raybatch.storage.folder import LocalFolder
    from airflow_provider_raybatch.storage.s3_folder import S3Folder

    opened: set[str] = set()

    def counting(own: Any) -> Any:
        def counted(self: Any, path: str, *arguments: Any) -> Any:
            opened.add(path)
            return own(self, path, *arguments)

        return counted

    for kind in (LocalFolder, S3Folder):
        for name in ("open", "read", "read_range"):
            setattr(kind, name, counting(getattr(kind, name)))
    # Imports, connections and library threads are not part of a resume.
    place.folder("none").list()
    _import()
    peak, began, cpu = Peak(), time.perf_counter(), time.process_time()
    missing = Attempt(place, submission=SUBMISSIONS).plan_work(place.folder(STORE) if reuse else None)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "seconds": seconds,
        "cpu": used,
        "mib": peak.mib,
        "missing": missing,
        "opened": sum(path.startswith("_raybatch/") for path in opened),
    }


def ray_data(place: Path) -> dict[str, float]:
    """Run a pipeline with a checkpoint until its missing row reaches the map in place of an engine."""
    import ray
    import ray.data
    from ray.data.checkpoint import CheckpointConfig

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    ray.get(ray.remote(lambda: None).remote())
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(place / CHECKPOINT), delete_checkpoint_on_success=False
    )
    reached = place / "reached"
    reached.unlink(missing_ok=True)

    def engine(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(batch["id"]):
            with reached.open("a") as file:
                file.write(f"{time.time()} {len(batch['id'])}\n")
        return batch

    peak, began = Peak(), time.time()
    pipeline = ray.data.read_parquet(str(place / INPUT)).map_batches(engine, batch_size=128)
    pipeline.write_parquet(str(place / "written"), mode="append")
    lines = [line.split() for line in reached.read_text().splitlines()]
    if sum(int(rows) for _, rows in lines) != 1:
        raise SystemExit(f"other than one row reached the engine: {lines}")
    return {"seconds": min(float(at) for at, _ in lines) - began, "mib": peak.mib}
