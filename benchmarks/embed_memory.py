# SPDX-License-Identifier: Apache-2.0
"""Memory of a job that makes a vector of each row, by the number of rows, with the engine ``echo``.

Each line is a whole job on a Ray of its own: read, embed, write parts, publish. The peaks are those of the
driver and, without shared memory, of all of Ray's workers together: replica, publishers and those for keys.

    python benchmarks/embed_memory.py [ROWS ...] > benchmarks/results/embed_memory.md
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = (100_000, 300_000, 1_000_000)
SIZE = 384
MIB = 1024**2


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print("RESULT", json.dumps(measured(int(sys.argv[2]), Path(sys.argv[3]))), flush=True)
        return
    numbers = [int(one) for one in sys.argv[1:]] or ROWS
    print("# Memory of a job that embeds\n")
    print(
        f"Engine `echo`, vectors of {SIZE} numbers in float32, {os.cpu_count()} CPU cores. Peaks in MiB; the"
    )
    print("driver's without Ray's own processes. Made by `python benchmarks/embed_memory.py`.\n")
    print("| rows | driver | workers of Ray | seconds of rows | seconds of commit | dataset, MiB |")
    print("|---|---|---|---|---|---|")
    for rows in numbers:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = apart(rows, folder)
        sizes = f"{found['driver']:,.0f} | {found['workers']:,.0f}"
        print(f"| {rows:,} | {sizes} | {found['rows']:.0f} | {found['commit']:.0f} | {found['mib']:,.0f} |")


def apart(rows: int, folder: str) -> dict[str, float]:
    """Measure in a fresh process."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    output = subprocess.run(
        [sys.executable, __file__, "--measure", str(rows), folder],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
    return found


def write_rows(file: Path, rows: int) -> None:
    """Texts of five words, each different."""
    words = ["harbor", "lantern", "orchard", "copper", "meadow", "signal", "river", "quartz", "bakery"]
    pick = np.random.default_rng(20261127)
    with pq.ParquetWriter(file, pa.schema([("text", pa.string())])) as writer:
        for first in range(0, rows, 100_000):
            size = min(100_000, rows - first)
            some = [pa.array(words).take(pa.array(pick.integers(0, len(words), size))) for _ in range(4)]
            numbers = pa.array(np.arange(first, first + size)).cast(pa.string())
            writer.write_table(pa.table({"text": pc.binary_join_element_wise(numbers, *some, " ")}))


def measured(rows: int, folder: Path) -> dict[str, float]:
    import ray

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.manifest import BatchManifest
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run

    write_rows(folder / "rows.parquet", rows)
    document: dict[str, Any] = {
        "source": [str(folder / "rows.parquet")],
        "prompt_column": "text",
        "model_task": "embed",
        "model": "echo",
        "engine": "echo",
        "engine_args": {"embedding_size": SIZE},
        "destination": str(folder / "out"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "embed"},
            "run_token": "token",
            "submission_id": "raybatch-embed-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
        object_store_memory=256 * MIB,
    )  # fmt: skip
    try:
        with watched() as peaks:
            summary = run(spec, spec.submission, lambda event: print(event, file=sys.stderr))
    finally:
        ray.shutdown()
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    assert manifest.counts.ok == rows
    return {
        **peaks,
        "rows": manifest.timing.generation_seconds,
        "commit": manifest.timing.commit_seconds,
        "mib": sum(file.bytes for file in manifest.files) / MIB,
    }


@contextlib.contextmanager
def watched() -> Any:
    """Peaks of this process, and of all of Ray's workers below it, read five times a second."""
    peaks = {"driver": 0.0, "workers": 0.0}
    over = threading.Event()
    here = psutil.Process()

    def watch() -> None:
        while not over.wait(0.2):
            peaks["driver"] = max(peaks["driver"], here.memory_info().rss / MIB)
            workers = 0
            for child in here.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.name().startswith("ray::"):
                        workers += child.memory_full_info().uss
            peaks["workers"] = max(peaks["workers"], workers / MIB)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
