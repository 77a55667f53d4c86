# SPDX-License-Identifier: Apache-2.0
"""How far the cost that the progress line expects at the end is from what the job then costs.

The real job on a Ray of this machine, with echo engines that answer `--slots` rows at once, at a fixed time a
token. Ray is told of GPUs that are not there, so replicas hold and bill them. Three workloads: rows of one
length; lengths as of chats, where one row in a hundred is very long; and replicas whose engines are ready at
different times, up to a minute apart. Each reading of the job's second half is compared. Prints one JSON
document.

    python benchmarks/expected_cost.py --seconds 120
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261127
REPLICAS = 4
PRICE = {"H100": 3.9}
WORDS = 30
"""Of a row, on average."""


def lengths_of(workload: str, rows: int) -> list[int]:
    """Return the words of each row."""
    pick = random.Random(SEED)
    if workload == "even rows":
        return [WORDS] * rows
    lengths = [min(150, max(3, int(pick.lognormvariate(3.2, 0.6)))) for _ in range(rows)]
    if workload == "long tail":
        return [length if pick.random() > 0.01 else 8 * WORDS for length in lengths]
    return lengths


def main() -> None:
    options = arguments()
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        address="local",
        num_cpus=REPLICAS + 1,
        num_gpus=REPLICAS,
        resources={"accelerator_type:H100": REPLICAS},
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    found = []
    for workload, spread in (("even rows", 0), ("long tail", 0), ("late replicas", options.seconds / 2)):
        if workload in options.workloads:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                found.append(measure(workload, spread, Path(folder), options))
    ray.shutdown()
    print(json.dumps(found, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of generation, about")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--seconds-per-token", type=float, default=0.05)
    parser.add_argument("--workloads", nargs="*", default=["even rows", "long tail", "late replicas"])
    parser.add_argument("--readings", action="store_true", help="print each reading")
    return parser.parse_args()


def measure(workload: str, spread: float, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.events import Event, Progress
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run as run_job

    rows = int(options.seconds * REPLICAS * options.slots / (WORDS * options.seconds_per_token))
    lengths = lengths_of(workload, rows)
    (folder / "in").mkdir()
    texts = [f"{number} " + "word " * (length - 1) for number, length in enumerate(lengths)]
    pq.write_table(pa.table({"text": texts}), folder / "in/all.parquet", row_group_size=100)
    document = {
        "source": [str(folder / "in")],
        "prompt": "{row.text}",
        "model": "echo",
        "sampling": {"temperature": 0},
        "engine": "echo",
        "replicas": REPLICAS,
        "num_cpus": 1,
        "engine_args": {
            "tensor_parallel_size": 1,
            "seconds_per_token": options.seconds_per_token,
            "max_num_seqs": options.slots,
            "startup_spread": spread,
        },
        "deduplicate": False,
        "destination": str(folder / "out"),
        "gpu_hour_price": PRICE,
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "cost"},
            "run_token": "token",
            "submission_id": "raybatch-cost-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    said: list[Progress] = []

    def emit(event: Event) -> None:
        if isinstance(event, Progress):
            said.append(event)

    summary = run_job(spec, spec.submission, emit)
    manifest = json.loads(Path(summary.manifest_uri).read_text())
    return result(workload, said, manifest, options)


def result(
    workload: str, said: list[Any], manifest: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    cost, held = manifest["cost"], manifest["gpu_seconds_by_type"]
    later = [one for one in said if one.done >= one.total / 2 and one.done < one.total]
    known = [one for one in later if one.expected_cost is not None]
    errors = [round(100 * (one.expected_cost / cost - 1), 1) for one in known]
    found = {
        "workload": workload,
        "rows": manifest["counts"]["ok"],
        "seconds": manifest["timing"]["total_seconds"],
        "gpu_seconds": manifest["gpu_seconds"],
        "cost": cost,
        "cost_by_hand": round(sum(seconds * PRICE[kind] for kind, seconds in held.items()) / 3600, 6),
        "readings": len(later),
        "without_an_expectation": len(later) - len(known),
        "errors_percent": errors,
        "largest_error_percent": max(map(abs, errors), default=None),
    }
    if options.readings:
        fields = ("done", "eta_seconds", "cost", "expected_cost", "rows_per_second", "at")
        found["said"] = [{name: getattr(one, name) for name in fields} for one in said]
    return found


if __name__ == "__main__":
    main()
