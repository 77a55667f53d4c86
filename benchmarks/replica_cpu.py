# SPDX-License-Identifier: Apache-2.0
"""CPU time per row of the Python process that feeds an engine, compared with vLLM's own ``LLM.chat``.

If answers are short and the GPU is fast, the GPU waits for this process, whose time per row limits the rows a
second. A replica reads, renders, makes keys and writes; its front end, a process of its own that tokenises,
asks and detokenises, is not counted, nor is the engine. For ``LLM.chat`` all rows are in memory, nothing is
written, and one process does all but the engine's part. The model is tiny, on vLLM's CPU build, so that
nothing here depends on a GPU.

    python benchmarks/replica_cpu.py [ROWS] > benchmarks/results/replica_cpu.md
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 8192
SHARED = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
MODEL = Path(__file__).parents[1] / "dags_examples/demo_model/model"
WAYS = {
    "LLM.chat": "`LLM.chat`, all rows in one call",
    "sampling": "replica, sampling of the job",
    "sampling_column": "replica, sampling in a column",
}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        way, folder = sys.argv[2:]
        measure = by_llm_chat if way == "LLM.chat" else by_replica
        print("RESULT", json.dumps(measure(Path(folder), way)), flush=True)
        return
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        write_rows(Path(folder), rows)
        seconds = {way: measured(way, folder) for way in WAYS}
    versions = ", ".join(f"{name} {version(name)}" for name in ("vLLM", "Ray", "pyarrow"))
    print("# CPU time of the process that feeds an engine\n")
    print(f"{rows:,} chats of two messages, 8 tokens out, Python {sys.version.split()[0]}, {versions};")
    print(f"{os.cpu_count()} CPU cores, no GPU. Made by `python benchmarks/replica_cpu.py`.\n")
    print("| what | CPU microseconds a row | rows a second and core | beside `LLM.chat` |\n|---|---|---|---|")
    for way, name in WAYS.items():
        each = seconds[way] / rows
        ratio = seconds[way] / seconds["LLM.chat"]
        print(f"| {name} | {each * 1e6:.0f} | {1 / each:,.0f} | {ratio:.2f} |")


def write_rows(folder: Path, rows: int) -> None:
    words = ["harbor", "lantern", "orchard", "copper", "meadow", "signal", "river", "quartz", "bakery"]
    pick = random.Random(20261121)
    system = "You name the industry of a company from its name, in one word and in lower case. " * 3
    chats = [
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{number} {' '.join(pick.choices(words, k=12))}"},
        ]
        for number in range(rows)
    ]
    table = pa.table({"messages": chats, "sampling": [json.dumps(SHARED)] * rows})
    pq.write_table(table, folder / "rows.parquet")


def measured(way: str, folder: str) -> float:
    """Measure CPU seconds of the feeding process, in a fresh process."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    output = subprocess.run(
        [sys.executable, __file__, "--measure", way, folder],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    return float(json.loads(line.removeprefix("RESULT ")))


def by_llm_chat(folder: Path, way: str) -> float:
    from vllm import LLM, SamplingParams

    from airflow_provider_raybatch.job.engine.vllm_args import cpu_defaults

    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    llm = LLM(str(MODEL), **cpu_defaults(str(MODEL), {}))
    params = [SamplingParams(**json.loads(row["sampling"])) for row in rows]
    before = time.process_time()
    answers = llm.chat([row["messages"] for row in rows], params, use_tqdm=False)
    spent = time.process_time() - before
    assert all(len(answer.outputs[0].token_ids) == SHARED["max_tokens"] for answer in answers)
    return spent


def by_replica(folder: Path, way: str) -> float:
    import ray

    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.manifest import BatchManifest
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run

    document: dict[str, Any] = {
        "source": [str(folder / "rows.parquet")],
        "messages_column": "messages",
        "model": str(MODEL),
        way: SHARED if way == "sampling" else "sampling",
        "deduplicate": False,
        "destination": str(folder / way),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": way},
            "run_token": "token",
            "submission_id": f"raybatch-{way}-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    try:
        summary = run(spec, spec.submission, lambda event: None)
    finally:
        ray.shutdown()
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    assert manifest.tokens.output == manifest.counts.input * SHARED["max_tokens"]
    return sum(replica.cpu_seconds for replica in manifest.replicas)


def version(name: str) -> str:
    installed = {one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}
    return installed.get(name.lower()) or installed[f"{name.lower()}-cpu"]


if __name__ == "__main__":
    main()
