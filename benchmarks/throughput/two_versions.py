# SPDX-License-Identifier: Apache-2.0
"""The same job by two versions of this package, in turns on one GPU: what a change costs a real engine.

Each run starts its own Ray and its engine. Prints a JSON line a run, and at the end `ratios` of medians over
the pairs, the second version by the first: of the seconds from the first request to the last part on disk, of
those of the commit, and of both. Fields that only one version knows are given to that one.

usage: two_versions.py DATA OUT WORKLOAD FIRST SECOND [--pairs N] [--fields JSON] [--new JSON]

FIRST and SECOND are checkouts, DATA is what `workloads.py` has made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from two_gpus import SAMPLING_OF_ROWS

HERE = Path(__file__).parent
_RUN = """
import json, sys
from pathlib import Path
from job import Task, start_cluster
data, out, name, options, fields = sys.argv[1:]
start_cluster(**json.loads(options))
task = Task(Path(data) / name, Path(data) / "model", Path(out), json.loads(fields))
print("MANIFEST", json.dumps(task.run()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="two_versions.py", description=__doc__)
    for name in ("data", "out", "workload", "first", "second"):
        parser.add_argument(name)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--fields", default='{"engine_args": {"load_format": "dummy"}}', help="of both specs")
    parser.add_argument("--new", default="{}", help="fields that the second version alone knows")
    parser.add_argument("--cluster", default='{"num_gpus": 1}', help="options of ray.init")
    given = parser.parse_args()
    for name in ("data", "out", "first", "second"):
        setattr(given, name, str(Path(getattr(given, name)).resolve()))
    Path(given.out).mkdir(parents=True, exist_ok=True)
    both = {**json.loads(SAMPLING_OF_ROWS), **json.loads(given.fields)}
    fields = {"first": both, "second": {**both, **json.loads(given.new)}}
    found: dict[str, list[dict[str, float]]] = {"first": [], "second": []}
    for pair in range(given.pairs):
        # The one that begins changes, since a machine's speed drifts.
        for which in sorted(found, reverse=bool(pair % 2)):
            found[which].append(measured(given, which, fields[which]))
    ratios = {
        part: round(_median(found["second"], part) / _median(found["first"], part), 4)
        for part in ("generation", "commit", "both", "total")
    }
    print("RESULT", json.dumps({"workload": given.workload, "ratios": ratios}), flush=True)


def measured(given: argparse.Namespace, which: str, fields: dict[str, Any]) -> dict[str, float]:
    """Seconds of one run of a version."""
    path = os.pathsep.join([getattr(given, which), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _RUN, given.data, given.out, given.workload, given.cluster]
    output = subprocess.run(
        [*command, json.dumps(fields)],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        cwd=given.out,  # Python looks for packages there first
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    (line,) = (line for line in output.splitlines() if line.startswith("MANIFEST "))
    manifest = json.loads(line.removeprefix("MANIFEST "))
    timing = manifest["timing"]
    generation, commit = timing["generation_seconds"], timing["commit_seconds"]
    seconds = {"generation": generation, "commit": commit, "both": generation + commit}
    seconds["total"] = timing["total_seconds"]
    told = ("gpu_seconds", "gpu_seconds_by_type", "gpu_hour_price", "cost", "currency", "report_uri")
    rows = {"rows": manifest["counts"]["ok"], "output_tokens": manifest["tokens"]["output"]}
    money = {name: manifest[name] for name in told if manifest.get(name)}
    print("RESULT", json.dumps({"version": which, **rows, **seconds, **money}), flush=True)
    return seconds


def _median(runs: list[dict[str, float]], part: str) -> float:
    return statistics.median(run[part] for run in runs)


if __name__ == "__main__":
    main()
