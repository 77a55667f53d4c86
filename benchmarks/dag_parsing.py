# SPDX-License-Identifier: Apache-2.0
"""Time to make and to serialise a DAG of 100 operators, compared with as many BashOperators in the same run.

Each figure is the least CPU time of some rounds, in turns, so that other work on the machine changes little.
With a checkout of another version of the provider, that one is measured in the same way.

    python benchmarks/dag_parsing.py
    python benchmarks/dag_parsing.py --other ../main    # a checkout; writes benchmarks/results/dag_parsing.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results/dag_parsing.md"
OPERATORS, ROUNDS, TURNS = 100, 7, 3


def bash() -> Any:
    """Return a DAG of BashOperators."""
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG

    with DAG("bash", schedule=None) as dag:
        for number in range(OPERATORS):
            BashOperator(task_id=f"t{number}", bash_command="echo {{ ds }}")
    return dag


def batches() -> Any:
    """Return a DAG of batch inferences, with two arguments behind templates as most have."""
    from airflow.sdk import DAG

    from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

    with DAG("batches", schedule=None) as dag:
        for number in range(OPERATORS):
            RayBatchInferenceOperator(
                task_id=f"t{number}", source="s3://lake/in/{{ ds }}/", destination=f"s3://lake/out/{number}/",
                prompt="In which industry is {row.Company}?", model="unsloth/Llama-3.1-8B-Instruct",
                sampling={"temperature": 0, "structured_outputs": {"choice": ["a", "b", "c"]}},
            )  # fmt: skip
    return dag


def least(make: Callable[[], Any]) -> tuple[float, float, int]:
    """Return milliseconds to make and to serialise a DAG, and the bytes of one of its tasks."""
    from airflow.serialization.serialized_objects import DagSerialization

    made = serialised = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        dag = make()
        between = time.process_time()
        document = DagSerialization.to_dict(dag)
        made = min(made, between - started)
        serialised = min(serialised, time.process_time() - between)
    return made * 1000, serialised * 1000, len(json.dumps(document["dag"]["tasks"][0]))


def measured(root: Path) -> dict[str, tuple[float, float, int]]:
    """Measure the provider of a checkout in an interpreter of its own."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, __file__, "--measure"],
            env={**os.environ, "PYTHONPATH": str(root), "AIRFLOW_HOME": home},
            capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip
    found: dict[str, tuple[float, float, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def least_of(turns: list[dict[str, tuple[float, float, int]]], kind: str) -> list[float]:
    """Return the least of each figure over turns."""
    return [min(figures) for figures in zip(*(turn[kind] for turn in turns), strict=True)]


def row(name: str, figures: list[float], base: list[float]) -> str:
    """Return a line of the table: figures, and ratios to BashOperator in the same turns."""
    made, serialised, size = figures
    return (
        f"| {name} | {made:.1f} | {made / base[0]:.2f} | {serialised:.1f} | {serialised / base[1]:.2f} "
        f"| {size:,.0f} |"
    )


def main(other: Path | None) -> None:
    """Measure in turns and print, or write, a table."""
    roots = {"now": ROOT, **({"before": other} if other else {})}
    turns: dict[str, list[dict[str, tuple[float, float, int]]]] = {name: [] for name in roots}
    for _ in range(TURNS):
        for name, root in roots.items():
            turns[name].append(measured(root))
    base = least_of([turn for each in turns.values() for turn in each], "bash")
    rows = [row("`BashOperator`", base, base)]
    rows += [
        row(f"`RayBatchInferenceOperator`, {name}", least_of(turns[name], "batches"), base)
        for name in reversed(roots)
    ]
    text = "\n".join([
        f"| {OPERATORS} operators | made (ms) | ratio | serialised (ms) | ratio | bytes a task |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
    ])  # fmt: skip
    print(text)
    if other:
        RESULT.write_text(
            "# Making and serialising a DAG\n\n"
            "What the check of arguments costs while a DAG is parsed, and what a task adds to the serialised "
            "DAG.\n\n"
            f"{text}\n\n"
            f"Least CPU time of {TURNS} interpreters with {ROUNDS} rounds each, in turns; ratios are to as "
            'many `BashOperator`s. "Before", no argument\nwas checked while a DAG was parsed, and each task '
            "named all of its template fields. "
            f"Python {platform.python_version()}, {os.cpu_count()} cores,\n"
            "shared with other work.\n\nMade by `python benchmarks/dag_parsing.py --other CHECKOUT`.\n"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--other", type=Path, help="a checkout of the version to compare with")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps({"bash": least(bash), "batches": least(batches)}))
    else:
        main(given.other)
