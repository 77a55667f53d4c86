# SPDX-License-Identifier: Apache-2.0
"""What the provider adds to each start of `airflow` and to each parsing of a DAG, beside another version's.

    python benchmarks/airflow_start.py CHECKOUT    # writes benchmarks/results/airflow_start.md

Both versions take turns, each time in fresh interpreters. A first turn fills the file cache and does not
count.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dag_parsing import OPERATORS, ROOT, measured
from import_time import processor

RESULT = Path(__file__).parent / "results/airflow_start.md"
TURNS = 7
VERBS = """
import importlib, time
import airflow.cli.cli_config
started = time.process_time()
from airflow_provider_raybatch.get_provider_info import get_provider_info
for path in get_provider_info().get("cli", ()):
    module, _, name = path.rpartition(".")
    getattr(importlib.import_module(module), name)()
print(time.process_time() - started)
"""
NAMES = (
    "the provider's part of a start, CPU",
    "`airflow --help`, wall",
    "`airflow --help`, CPU",
    f"a DAG of {OPERATORS} operators made, CPU",
    "the same serialised, CPU",
)


def figures(root: Path, home: str) -> tuple[float, ...]:
    """Milliseconds of each of `NAMES` with the provider of a checkout."""
    seen = {**os.environ, "PYTHONPATH": str(root), "AIRFLOW_HOME": home}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name("airflow")), "--help"]
    subprocess.run(command, env=seen, stdout=subprocess.DEVNULL, check=True, timeout=120)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    made, serialised, _ = measured(root)["batches"]
    verbs = subprocess.run(
        [sys.executable, "-c", VERBS],
        cwd=home,  # a working directory comes before PYTHONPATH
        env=seen, stdout=subprocess.PIPE, check=True, text=True, timeout=120,
    )  # fmt: skip
    part = float(verbs.stdout.splitlines()[-1])
    return part * 1000, wall * 1000, spent * 1000, made, serialised


def main(other: Path) -> None:
    """Measure in turns, and write a table."""
    turns: dict[str, list[tuple[float, ...]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as home:
        for turn in range(TURNS + 1):
            for name, root in (("before", other), ("now", ROOT))[:: 1 if turn % 2 else -1]:
                found = figures(root, home)
                if turn:
                    turns[name].append(found)
    rows = []
    for place, name in enumerate(NAMES):
        before, now = ([turn[place] for turn in turns[one]] for one in ("before", "now"))
        ratio = statistics.median(new / old for new, old in zip(now, before, strict=True))
        more = statistics.median(new - old for new, old in zip(now, before, strict=True))
        rows.append(
            f"| {name} | {statistics.median(before):,.1f} | {statistics.median(now):,.1f} | {ratio:.3f} "
            f"| {more:+.1f} |"
        )
    commit = subprocess.run(
        ["git", "-C", str(other), "rev-parse", "--short", "HEAD"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
    airflow = importlib.metadata.version("apache-airflow")
    text = "\n".join([
        "# A start of Airflow",
        "",
        "What the provider's command line and its checks add to each `airflow` command and to each DAG.",
        "",
        f"| ms, medians of {TURNS} turns | before | now | ratio of a turn | difference of a turn |",
        "| --- | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        f'"Before" is commit {commit}, which has no command line. Both take turns in fresh interpreters;',
        "making and serialising is the least of 7 rounds in each. "
        f"Python {platform.python_version()}, apache-airflow {airflow};",
        f"{processor()}, {os.cpu_count()} cores, shared with other work.",
        "",
        "Made by `python benchmarks/airflow_start.py CHECKOUT`.",
        "",
    ])  # fmt: skip
    print(text)
    RESULT.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
