# SPDX-License-Identifier: Apache-2.0
"""Memory and speed of the parts in ``workflows/``, over a dataset of a million rows.

Each line is its own process, which reads the same dataset; memory is the peak of that process, with its
libraries.

    python benchmarks/workflows.py [ROWS] > benchmarks/results/workflows.md
"""

from __future__ import annotations

import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

ROWS = 1_000_000
BATCH = 4096
DUPLICATES = 0.1
SCHEMA = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "level": {"type": "integer", "minimum": 1}},
    "required": ["question", "level"],
}
PARTS = ("read", "schema check", "exact duplicates", "near duplicates", "remember", "earlier nights",
         "heuristics", "language", "scores", "both orders", "write partitions")  # fmt: skip


def main(rows: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        _in_a_process("make", folder, rows)
        print("# Parts for synthetic data, curation and evaluation\n")
        print(
            f"{rows:,} rows of about 60 words, a tenth of them near duplicates, on local disk; one process "
            "a line,"
        )
        print(f"peak of its memory with all libraries, CPU seconds. Python {platform.python_version()}.")
        print("Made by `python benchmarks/workflows.py`.\n")
        print("| part | peak, MiB | CPU, s | rows a CPU second |\n|---|---:|---:|---:|")
        for part in PARTS:
            peak, seconds = _in_a_process(part, folder, rows)
            print(f"| {part} | {peak:,.0f} | {seconds:,.0f} | {rows / seconds:,.0f} |", flush=True)


def _in_a_process(part: str, folder: str, rows: int) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--part", part, folder, str(rows)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    peak, seconds = json.loads(done.stdout.splitlines()[-1])
    return peak, seconds


def make(rows: int) -> Iterator[pa.RecordBatch]:
    """Write the dataset, with a fixed seed."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(20_000)]
    recent: list[list[str]] = []
    for start in range(0, rows, BATCH):
        texts = []
        for _ in range(min(BATCH, rows - start)):
            if recent and rng.random() < DUPLICATES:
                text = list(rng.choice(recent))
                text[rng.randrange(len(text))] = rng.choice(words)
            else:
                text = rng.choices(words, k=60)
            texts.append(text)
        recent = texts[:1000]
        numbers = range(start, start + len(texts))
        joined = [" ".join(text) for text in texts]
        yield pa.RecordBatch.from_pydict({
            "id": list(numbers),
            "text": joined,
            "response": [json.dumps({"question": text, "level": 3}) for text in joined],
            "answer": [str(number % 97) for number in numbers],
            "solution": [str(number % 89) for number in numbers],
            "bucket": [number % 20 for number in numbers],
        })


def run(part: str, folder: str, rows: int) -> None:
    """Measure one line of the table."""
    from airflow_provider_raybatch.workflows import (
        accepted,
        duplicates,
        filters,
        pairwise,
        schema_check,
        scores,
    )
    from airflow_provider_raybatch.workflows.rows import Rows
    from airflow_provider_raybatch.workflows.sift import SiftStep, sift
    from airflow_provider_raybatch.workflows.statistics import mean_interval
    from airflow_provider_raybatch.workflows.writer import DatasetWriter

    place, out = f"{folder}/in", f"{folder}/{part.replace(' ', '-')}"
    if part == "make":
        with DatasetWriter(place) as writer:
            for batch in make(rows):
                writer.write(batch)
        return
    source, index = Rows(place), f"{folder}/index"
    steps: dict[str, Any] = {
        "schema check": lambda: schema_check.SchemaCheck(SCHEMA),
        "exact duplicates": lambda: duplicates.ExactDuplicates(["text"], "id"),
        "near duplicates": lambda: duplicates.NearDuplicates(["text"], "id"),
        "earlier nights": lambda: duplicates.NearDuplicates(
            ["text"], "id", earlier=accepted.Accepted(index, "tonight")
        ),
        "heuristics": lambda: filters.Heuristics(),
        "language": lambda: filters.LanguageFilter([], min_score=0.0),
    }
    if part in steps:
        step: SiftStep = steps[part]()
        columns = ["id", "response"] if part == "schema check" else ["id", "text"]
        with DatasetWriter(f"{out}/kept") as kept, DatasetWriter(f"{out}/dropped") as dropped:
            sift(source.batches(columns), [step], kept, dropped)
    elif part == "remember":
        accepted.remember(source, index, "yesterday", ["text"], "id")
    elif part == "scores":
        batches = source.batches(["id", "answer", "solution"])
        scored = scores.score_answers(batches, scores.numeric_equal, "id", response="solution")
        mean_interval([one.mean for one in scored])
    elif part == "both orders":
        ours, theirs = source.batches(["id", "text"]), source.batches(["id", "text"])
        pairs = pairwise.both_orders(ours, theirs, "id", question="text", response="text")
        with DatasetWriter(out) as writer:
            for batch in pairs:
                writer.write(batch)
    elif part == "write partitions":
        with DatasetWriter(out, partition_by=["bucket"]) as writer:
            for batch in source.batches():
                writer.write(batch)
    else:
        for _ in source.batches():
            pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        began = time.process_time()
        run(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([peak, max(0.1, time.process_time() - began)]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else ROWS)
