# SPDX-License-Identifier: Apache-2.0
"""Memory of a job that makes a vector of each row, by the number of rows, with the engine ``echo``.

Each line is a whole job in a fresh process, from preflight to commit, without Ray: driver, replica, engine
and publisher are one process, so its peak is the sum of theirs.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.whole_job import attempt, without_cluster

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
        f"Engine `echo`, vectors of {SIZE} numbers in float32, {os.cpu_count()} CPU cores. Driver, replica,"
    )
    print("engine and publisher are one process. Made by `python benchmarks/embed_memory.py`.\n")
    print("| rows | memory before, MiB | peak, MiB | seconds of rows | seconds of commit | dataset, MiB |")
    print("|---|---|---|---|---|---|", flush=True)
    for rows in numbers:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = apart(rows, folder)
        sizes = f"{found['before']:,.0f} | {found['peak']:,.0f}"
        times = f"{found['rows']:.0f} | {found['commit']:.0f}"
        print(f"| {rows:,} | {sizes} | {times} | {found['mib']:,.0f} |", flush=True)


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
    write_rows(folder / "rows.parquet", rows)
    fields: dict[str, Any] = {
        "prompt_column": "text",
        "model_task": "embed",
        "engine_args": {"embedding_size": SIZE},
        "batch_size": None,
        "rows_per_part": None,
    }
    place = LocalFolder(str(folder / "out"))
    before = psutil.Process().memory_info().rss / MIB
    with pytest.MonkeyPatch.context() as patch, watched() as peak:
        without_cluster(patch)
        summary = attempt(place, 0, str(folder / "rows.parquet"), **fields)
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    assert manifest.counts.ok == rows
    return {
        "before": before,
        "peak": max(peak),
        "rows": manifest.timing.generation_seconds,
        "commit": manifest.timing.commit_seconds,
        "mib": sum(file.bytes for file in manifest.files) / MIB,
    }


@contextlib.contextmanager
def watched() -> Iterator[list[float]]:
    """The memory of this process in MiB, read five times a second."""
    read, over, here = [0.0], threading.Event(), psutil.Process()

    def watch() -> None:
        while not over.wait(0.2):
            read[0] = max(read[0], here.memory_info().rss / MIB)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield read
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
