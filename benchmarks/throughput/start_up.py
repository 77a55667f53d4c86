# SPDX-License-Identifier: Apache-2.0
"""Seconds to the first token: of a job, of one with a warm engine, and of ``LLM()`` in a script.

A cluster runs already, as a user's does. The first round finds vLLM's caches as they are, the later ones
warm. Phases of a job: its driver's process until its checks begin (Python, Ray), and then those that its
manifest has, until the first request is in an engine. The job with a warm engine takes that of a job before
it, and ends it. Prints a JSON line a run as it comes, and `ratios` at the end: medians of the later rounds.

usage: start_up.py DATA_FOLDER OUT_FOLDER WORKLOAD [ENGINE_ARGS_JSON] [ROUNDS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from job import Task, start_cluster

ROWS = 64
KEPT = 600
"""Seconds for which an engine waits for the next job."""
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
    model = Path(data) / "model"
    rows = some(Path(data) / workload, Path(out) / "rows")
    start_cluster()
    found = []
    fields = {"engine_args": engine}
    for _ in range(rounds):
        found.append((
            by_script(model, engine),
            by_job("job", Task(rows, model, Path(out), fields)),
            by_warm_engine(Task(rows, model, Path(out), fields), Task(rows, model, Path(out), fields)),
        ))
    later = found[1:]
    each = {
        "script to job, warm": [round(script / job, 3) for script, job, _ in later],
        "job to warm engine, first request": [round(job / kept, 3) for _, job, kept in later],
    }
    ratios = {name: statistics.median(values) for name, values in each.items() if values}
    print("RESULT", json.dumps({"rounds": found, "each": each, "ratios": ratios}))


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


def by_job(name: str, task: Task) -> float:
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
    return shown(name, {"driver": checks - began, **task.manifest()["timing"]["phases"]})


def by_warm_engine(first: Task, second: Task) -> float:
    """The first request of a job that takes the engine of another one."""
    first.fields = {**first.fields, "keep_warm": KEPT}
    second.fields = {**second.fields, "keep_warm": 0}
    first.run()
    return by_job("job, warm engine", second)


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
