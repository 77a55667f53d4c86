# SPDX-License-Identifier: Apache-2.0
"""What a job keeps in Ray's object store, where replicas share row groups that are larger than an order.

The real job on a Ray of this machine, with echo engines, an input of 240 MB, and an object store of 80 MiB.
Each line is its own process. It may run the code of another checkout, to compare.

    python benchmarks/object_store.py [CHECKOUT ...] > benchmarks/results/object_store.md
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
MIB = 2**20
STORE, REPLICAS, SLOTS, GROUPS, GROUP = 80 * MIB, 2, 8, 40, 100
TEXT = 60_000
"""Characters of a row."""
HEAD = f"""# Memory of Ray's object store

{REPLICAS} replicas share {GROUPS} row groups of {GROUP} rows, {GROUP * TEXT / 1e6:.0f} MB each.
Each takes at most {4 * SLOTS} rows at once. The object store has {STORE // MIB} MiB.
*Peak* is the most that it held, looked at every 0.1 s; *spilled* is what Ray wrote to disk from it.

Made by `python benchmarks/object_store.py`, with echo engines on one machine.

| last commit | peak, MiB | spilled, MiB |
|---|---|---|"""


class Watch(threading.Thread):
    """Looks at the object store until it is told to end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = self.spilled = 0
        self._ends = threading.Event()

    def run(self) -> None:
        """Look, each tenth of a second."""
        import ray
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        while not self._ends.wait(0.1):
            stats = get_memory_info_reply(state).store_stats
            self.peak = max(self.peak, stats.object_store_bytes_used)
            self.spilled = stats.spilled_bytes_total

    def end(self) -> None:
        """Look no more."""
        self._ends.set()
        self.join()


def measure() -> None:
    """Run the job; print a line of the table."""
    import ray

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write(Path(folder, "in"))
        ray.init(
            address="local",
            num_cpus=REPLICAS,
            object_store_memory=STORE,
            _node_ip_address="127.0.0.1",
            _temp_dir=f"{folder}/ray",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
        spec = parse(BatchInferenceSpec, json.dumps(document(folder)))
        assert spec.submission is not None
        watch = Watch()
        watch.start()
        summary = run(spec, spec.submission, lambda event: None)
        watch.end()
        ray.shutdown()
        done = json.loads(Path(summary.manifest_uri).read_text())["counts"]
        assert done["ok"] == GROUPS * GROUP, done
    print(f"{watch.peak / MIB:.0f} | {watch.spilled / MIB:.0f} |")


def write(folder: Path) -> None:
    """Write the input."""
    folder.mkdir()
    numbers = random.Random(34)
    schema = pa.schema({"text": pa.string()})
    with pq.ParquetWriter(folder / "all.parquet", schema, write_statistics=False) as writer:
        for _ in range(GROUPS):
            texts = [f"{numbers.getrandbits(4 * TEXT):0{TEXT}x}" for _ in range(GROUP)]
            writer.write_table(pa.table({"text": texts}, schema), row_group_size=GROUP)


def document(folder: str) -> dict[str, Any]:
    """Return the job's spec."""
    return {
        "source": [f"{folder}/in"],
        "prompt": "{row.text}",
        "model": "echo",
        "sampling": {"temperature": 0, "max_tokens": 4},
        "engine": "echo",
        "replicas": REPLICAS,
        "num_cpus": 1,
        "engine_args": {"seconds_per_token": 0.1, "max_num_seqs": SLOTS},
        "destination": f"{folder}/out",
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "object_store"},
            "run_token": "token",
            "submission_id": "raybatch-object-store-0",
        },
    }


def main() -> None:
    print(HEAD)
    for checkout in sys.argv[1:] or [str(ROOT)]:
        command = ["git", "-C", checkout, "log", "-1", "--format=%s"]
        subject = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        line = subprocess.run(
            [sys.executable, str(Path(__file__).absolute()), "measure"],
            cwd=checkout,  # from which Ray's workers import, too
            env={**os.environ, "PYTHONPATH": checkout},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"| {subject} | {line.stdout.splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
