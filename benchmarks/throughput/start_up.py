# SPDX-License-Identifier: Apache-2.0
"""Seconds to the first token: of a job, and of ``import vllm`` and ``LLM()`` in a script.

A cluster runs already, as a user's does. The first round finds vLLM's caches as they are, the later ones
warm. Phases of a job: its driver's process until its checks begin (Python, Ray), and then those that its
manifest has, until the first request is in an engine. Prints a JSON line a run as it comes, and `ratios` at
the end: seconds of the script by those of the job, the median of the warm rounds.

usage: start_up.py DATA_FOLDER OUT_FOLDER WORKLOAD [ENGINE_ARGS_JSON] [ROUNDS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from job import Task

ROWS = 64
SCRIPT = """
import json, sys, time
began = time.time()
from vllm import LLM, SamplingParams
imported = time.time()
llm = LLM(sys.argv[1], **json.loads(sys.argv[2]))
made = time.time()
llm.generate(["warm up"], SamplingParams(max_tokens=1), use_tqdm=False)
print("SECONDS", imported - began, made - imported, time.time() - made)
"""


def main() -> None:
    data, out, workload, *rest = sys.argv[1:]
    engine = json.loads(rest[0]) if rest else {"load_format": "dummy"}
    rounds = int(rest[1]) if len(rest) > 1 else 3
    import ray

    model = Path(data) / "model"
    rows = some(Path(data) / workload, Path(out) / "rows")
    context = ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1")
    os.environ["RAY_ADDRESS"] = context.address_info["address"]
    found = []
    for _ in range(rounds):
        found.append((
            by_script(model, engine),
            by_job(Task(rows, model, Path(out), {"engine_args": engine})),
        ))
    warm = [round(script / job, 3) for script, job in found[1:]]
    ratios = {"script to job, warm": statistics.median(warm)} if warm else {}
    print("RESULT", json.dumps({"rounds": found, "ratios": ratios}))


def some(source: Path, folder: Path) -> Path:
    """A few rows of a workload."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pq.read_table(source).slice(0, ROWS), folder / "rows.parquet")
    return folder


def by_script(model: Path, engine: dict[str, object]) -> float:
    """Import, engine and a first token, in a process of their own."""
    command = [sys.executable, "-c", SCRIPT, str(model), json.dumps(engine)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("SECONDS "))
    names = ("import vllm", "LLM()", "first token")
    return shown("script", dict(zip(names, map(float, line.split()[1:]), strict=True)))


def by_job(task: Task) -> float:
    """The first request of a new job."""
    began = time.time()
    process = task.start(stdout=subprocess.PIPE)
    assert process.stdout is not None
    checks = 0.0
    for line in process.stdout:
        if not checks and line.startswith("checking "):
            checks = time.time()
    if process.wait() != 0:
        raise SystemExit(f"{task.destination}: the job failed")
    return shown("job", {"driver": checks - began, **task.manifest()["timing"]["phases"]})


def shown(system: str, phases: dict[str, float]) -> float:
    total = sum(phases.values())
    line = {
        "system": system,
        "seconds": round(total, 1),
        **{name: round(one, 1) for name, one in phases.items()},
    }
    print("RESULT", json.dumps(line), flush=True)
    return round(total, 1)


if __name__ == "__main__":
    main()
