# SPDX-License-Identifier: Apache-2.0
"""How close to linear speed several replicas with spread starts come, and how close together they end.

The real job on a Ray of this machine, with echo engines: each answers `--slots` rows at once, at a fixed time
a token. So the ideal distribution of rows is known exactly: no slot of a live engine is ever empty. The ratio
is the ideal time over the measured time. Both begin when the first engine is ready, by the engines' own logs.
Prints one JSON document.

    python benchmarks/replicas.py --replicas 8 --spread 60 --rows 24000
    python benchmarks/replicas.py --replicas 8 --layout files     # a row a file
    python benchmarks/replicas.py --replicas 2 --spread 0 --layout group
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261122


@dataclass
class Engine:
    """The life of one engine by its own log, in epoch seconds."""

    ready: float
    ends: list[float] = field(default_factory=list)


def main() -> None:
    options = arguments()
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(
        address="local",
        num_cpus=options.replicas,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lengths = write(Path(folder), options)
        began = time.time()
        manifest = run(Path(folder), options)
        seconds = time.time() - began
        engines = read_log(Path(folder) / "log")
    ray.shutdown()
    print(json.dumps(result(options, lengths, engines, manifest, seconds), indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--spread", type=float, default=60.0, help="seconds over which engines start")
    parser.add_argument("--rows", type=int, default=24_000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seconds-per-token", type=float, default=0.1)
    parser.add_argument("--layout", choices=["group", "groups", "files"], default="groups")
    return parser.parse_args()


def write(folder: Path, options: argparse.Namespace) -> list[int]:
    """Write the input: lognormal lengths, median 30 words. Return the words of each row."""
    pick = random.Random(SEED)
    lengths = [min(150, max(3, int(pick.lognormvariate(3.4, 0.6)))) for _ in range(options.rows)]
    texts = [f"{number} " + "word " * (length - 1) for number, length in enumerate(lengths)]
    source = folder / "in"
    source.mkdir()
    if options.layout == "files":
        for number, text in enumerate(texts):
            pq.write_table(pa.table({"text": [text]}), source / f"{number:06d}.parquet")
    else:
        group = options.rows if options.layout == "group" else 1000
        pq.write_table(pa.table({"text": texts}), source / "all.parquet", row_group_size=group)
    return lengths


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.phases.driver import run as run_job

    document = {
        "source": [str(folder / "in")],
        "prompt": "{row.text}",
        "model": "echo",
        "sampling": {"temperature": 0},
        "engine": "echo",
        "replicas": options.replicas,
        "num_cpus": 1,
        "engine_args": {
            "seconds_per_token": options.seconds_per_token,
            "max_num_seqs": options.slots,
            "startup_spread": options.spread,
            "request_log": str(folder / "log"),
        },
        "deduplicate": False,
        "destination": str(folder / "out"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "replicas"},
            "run_token": "token",
            "submission_id": "raybatch-replicas-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    summary = run_job(spec, spec.submission, lambda event: None)
    found: dict[str, Any] = json.loads(Path(summary.manifest_uri).read_text())
    return found


def read_log(folder: Path) -> list[Engine]:
    found = []
    for file in folder.glob("*.jsonl"):
        engine: Engine | None = None
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "open":
                engine = Engine(event["at"])
                found.append(engine)
            elif event["event"] == "end" and engine is not None:
                engine.ends.append(event["at"])
    return sorted(found, key=lambda engine: engine.ready)


def ideal_end(ready: list[float], slots: int, work: float) -> float:
    """Return when `work` seconds of one slot are done, if no slot of a ready engine is ever empty."""
    done, slots_now = 0.0, 0
    for number, start in enumerate(ready):
        following = ready[number + 1] if number + 1 < len(ready) else float("inf")
        slots_now += slots
        if done + slots_now * (following - start) >= work:
            return start + (work - done) / slots_now
        done += slots_now * (following - start)
    raise AssertionError("no engine was ready")


def result(
    options: argparse.Namespace,
    lengths: list[int],
    engines: list[Engine],
    manifest: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    work = sum(lengths) * options.seconds_per_token
    first = engines[0].ready
    last = max(max(engine.ends) for engine in engines if engine.ends)
    best = ideal_end([engine.ready for engine in engines], options.slots, work)
    ends = [max(engine.ends) for engine in engines if engine.ends]
    parts = manifest["counts"]
    return {
        "replicas": options.replicas,
        "rows": options.rows,
        "layout": options.layout,
        "job_seconds": round(seconds, 1),
        "counts": parts,
        "seconds_from_first_engine": round(last - first, 2),
        "ideal_seconds": round(best - first, 2),
        "each": [
            {
                "ready": round(engine.ready - first, 1),
                "rows": len(engine.ends),
                "end": round(max(engine.ends) - first, 2) if engine.ends else None,
            }
            for engine in engines
        ],
        "cpu_seconds": [round(one["cpu_seconds"], 1) for one in manifest["replicas"]],
        "ratios": {
            "linear": round((best - first) / (last - first), 3),
            "ends_within": round((max(ends) - min(ends)) / (last - first), 3),
            "rows_of_median_replica": round(
                statistics.median(len(engine.ends) for engine in engines) * len(engines) / options.rows, 3
            ),
        },
    }


if __name__ == "__main__":
    main()
