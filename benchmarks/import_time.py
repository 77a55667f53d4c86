# SPDX-License-Identifier: Apache-2.0
"""The import time of the operator in a DAG file, compared with Airflow's BaseOperator alone.

Run ``python benchmarks/import_time.py [ROUNDS]`` in an environment that has the provider. Each interpreter
imports BaseOperator first and then the operator, so that both figures of a ratio have the same load. A first
round fills the file cache and is not counted. Writes ``benchmarks/results/import_time.md``.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MODULES = ("airflow_provider_raybatch.operators.ray_job", "airflow_provider_raybatch.operators.ray_batch")
MEASURE = """
import importlib, json, resource, sys, time
def reached():
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
started = time.perf_counter()
from airflow.sdk import BaseOperator
alone = reached()
importlib.import_module(sys.argv[1])
print(json.dumps([*alone, *reached()]))
"""
RESULT = Path(__file__).parent / "results/import_time.md"


class Reading(NamedTuple):
    """Figures of one interpreter: BaseOperator alone, then with the operator."""

    alone_seconds: float
    alone_peak_mib: float
    seconds: float
    peak_mib: float


def measure(module: str, home: str) -> Reading:
    """Import in a fresh interpreter, with an Airflow home of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, module],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "AIRFLOW_HOME": home},
        timeout=120,
    )
    return Reading(*json.loads(done.stdout.splitlines()[-1]))


def processor() -> str:
    """Return the processor's name, which Linux has only in a file."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def row(module: str, readings: list[Reading]) -> str:
    """Return medians of one module's readings and ratios, as a line of a markdown table."""
    alone_seconds, alone_peak_mib, seconds, peak_mib = (
        statistics.median(column) for column in zip(*readings, strict=True)
    )
    times = statistics.median(reading.seconds / reading.alone_seconds for reading in readings)
    peaks = statistics.median(reading.peak_mib / reading.alone_peak_mib for reading in readings)
    return (
        f"| `{module}` | {alone_seconds:.2f} | {seconds:.2f} | {times:.3f} "
        f"| {alone_peak_mib:.1f} | {peak_mib:.1f} | {peaks:.3f} |"
    )


def main(rounds: int) -> None:
    """Measure all modules in turns and write the result."""
    readings: dict[str, list[Reading]] = {module: [] for module in MODULES}
    with tempfile.TemporaryDirectory() as home:
        for turn in range(rounds + 1):
            for module, taken in readings.items():
                reading = measure(module, home)
                if turn:
                    taken.append(reading)
    packages = ("apache-airflow", "airflow-provider-raybatch")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    rows = "\n".join(row(module, taken) for module, taken in readings.items())
    text = (
        "# Import time of the operators\n\n"
        "| module | `BaseOperator` (s) | with module (s) | ratio | alone (MiB) | with it (MiB) | ratio |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        f"{rows}\n\n"
        f"Medians over {rounds} fresh interpreters a module: wall time and peak resident memory. "
        f"Python {platform.python_version()}, {versions}; {processor()}, {os.cpu_count()} cores.\n\n"
        "Made by `python benchmarks/import_time.py`.\n"
    )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
