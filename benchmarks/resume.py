# SPDX-License-Identifier: Apache-2.0
"""What a resume costs before the first missing row reaches an engine, with all rows but one done already.

Ours reads the ledger of parts; Ray Data's checkpoint filters the same input by the ids of finished rows. Both
run on the same Parquet files, each in a fresh process; memory is what all processes below it hold together at
their peak, less what they held before they looked at the input.

    python benchmarks/resume.py [ROWS ...] > benchmarks/results/resume.md
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = (100_000, 1_000_000, 10_000_000)
ROWS_PER_FILE = 250_000
ROWS_PER_PART = 4096
"""As the job plans them for ten million rows."""
RAY_ROWS_PER_CHECKPOINT = 100_000
HEAD = """# Resume with all rows but one done

Seconds from the first look at the input until the missing row can be asked, or is, and the memory above what
was held before. Ours: source, ledger, list of work. Ray Data: until the map that stands for the engine has
the row.
"""
INPUT, DESTINATION, CHECKPOINT = "in", "out", "checkpoint"


class Peak:
    """The most memory that this process and all below it hold together, above what they held at first."""

    def __init__(self) -> None:
        self._least = self._most = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def mib(self) -> float:
        """So far."""
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


def prepare(place: Path, rows: int) -> None:
    """An input of `rows` rows, and what both systems remember of all of them but the last."""
    (place / INPUT).mkdir(parents=True)
    (place / CHECKPOINT).mkdir()
    for first in range(0, rows, ROWS_PER_FILE):
        ids = np.arange(first, min(first + ROWS_PER_FILE, rows))
        table = pa.table({"id": ids, "text": [f"row {number}" for number in ids]})
        pq.write_table(table, place / INPUT / f"{first:010d}.parquet")
    for first in range(0, rows, RAY_ROWS_PER_CHECKPOINT):
        ids = np.arange(first, min(first + RAY_ROWS_PER_CHECKPOINT, rows - 1))
        pq.write_table(pa.table({"id": ids}), place / CHECKPOINT / f"{first:010d}.parquet")
    _write_parts(place, rows)


def _write_parts(place: Path, rows: int) -> None:
    from airflow_provider_raybatch.job.key_array import KEY
    from airflow_provider_raybatch.job.ledger import parts
    from airflow_provider_raybatch.job.storage.folder import folder

    destination = folder(str(place / DESTINATION))
    for number, first in enumerate(range(0, rows, ROWS_PER_PART)):
        ordinals = np.arange(first, min(first + ROWS_PER_PART, rows - 1))
        if not len(ordinals):
            continue
        size = len(ordinals)
        output = {
            "response": [f"row {ordinal}" for ordinal in ordinals],
            "finish_reason": ["stop"] * size,
            "input_tokens": np.full(size, 2),
            "cached_tokens": np.zeros(size, np.int64),
            "output_tokens": np.full(size, 2),
        }
        kind = parts.output_type(False)
        arrays = {
            "ordinal": pa.array(ordinals, pa.uint64()),
            "ok": pa.array(np.ones(size, np.bool_)),
            "key": pa.array([int(ordinal).to_bytes(16, "big") for ordinal in ordinals], KEY),
            "id": pa.nulls(size, pa.string()),
            "origin": pa.array(["generated"] * size),
            "paid_by": pa.nulls(size, pa.string()),
            "failure": pa.nulls(size, parts.FAILURE),
            "output": pa.StructArray.from_arrays(
                [pa.array(output[field.name], field.type) for field in kind], fields=list(kind)
            ),
        }
        columns = pa.table({"id": ordinals, "text": output["response"]})
        parts.write_arrays(destination, f"ledger/submission/{number:08d}", columns, arrays)


def ours(place: Path) -> dict[str, float]:
    """Look at the source, read the ledger, and make the list of work."""
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.ledger.ledger import look_back
    from airflow_provider_raybatch.job.preflight.input_check import look_at_source
    from airflow_provider_raybatch.job.resume import work
    from airflow_provider_raybatch.job.storage.folder import folder

    document = {
        "source": {"paths": [str(place / INPUT)]},
        "prompt": {"kind": "prompt_column", "column": "text"},
        "model": {"name": "echo"},
        "engine": {"kind": "echo"},
        "destination": {"uri": str(place / DESTINATION)},
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    peak, began = Peak(), time.perf_counter()
    source = look_at_source(spec, None)
    ledger = look_back(folder(str(place / DESTINATION)), "ledger", source.rows)
    items = work(source, ROWS_PER_PART, ledger.good)
    seconds = time.perf_counter() - began
    (left,) = (len(item.positions) for item in items)
    if left != 1:
        raise SystemExit(f"{left} rows are left, and it should be one")
    return {"seconds": seconds, "mib": peak.mib}


def ray_data(place: Path) -> dict[str, float]:
    """Run a pipeline with a checkpoint, until its missing row reaches the map that stands for an engine."""
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


SYSTEMS = {"airflow-provider-raybatch": ours, "Ray Data checkpoint": ray_data}


def measured(name: str, place: Path) -> dict[str, float]:
    """One system in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", name, str(place)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(sizes: list[int]) -> None:
    """Print the table."""
    print(HEAD)
    print(
        f"Ray {importlib.metadata.version('ray')}, pyarrow {pa.__version__}; local disk, 2 CPU cores, 24 GiB,"
    )
    print("no GPU. Made by `python benchmarks/resume.py`.\n")
    print("| rows done | system | seconds | ratio | MiB |\n|---|---|---|---|---|")
    for rows in sizes:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            place = Path(folder)
            prepare(place, rows)
            results = {name: measured(name, place) for name in SYSTEMS}
        own = next(iter(results.values()))
        for name, found in results.items():
            ratio = found["seconds"] / own["seconds"]
            figures = f"{found['seconds']:.2f} | {ratio:.1f} | {found['mib']:,.0f}"
            print(f"| {rows - 1:,} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(SYSTEMS[sys.argv[2]](Path(sys.argv[3]))))
    else:
        main([int(rows) for rows in sys.argv[1:]] or list(ROWS))
