# SPDX-License-Identifier: Apache-2.0
"""The memory of a driver, by the number of chunks of its input.

Each line is its own process. One table has the driver's steps with chunks: the list of work and its texts
for Ray, the reports of finished chunks, the listing of parts, and their footers when the dataset is
published. The other has what the survey keeps of text files: where each can be cut. No Ray runs, so the
memory of Ray Data itself is not included.

    python benchmarks/driver_memory.py [CHUNKS ...] > benchmarks/results/driver_memory.md
"""

from __future__ import annotations

import ctypes
import gc
import json
import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

CHUNKS = (1_000, 5_000, 20_000)
ROWS_PER_CHUNK = 512
REPLICAS = 64
FOOTERS = 2_000
"""So many parts are written, and their footers read as often as there are chunks."""
HEAD = f"""# Memory of the driver

Growth of its memory in MiB after each step, which is kept;
{ROWS_PER_CHUNK} rows a chunk, {REPLICAS} replicas.
*New*: no row is done. *Resumed*: one row of each chunk is missing. A replica sends a report each second; it
and `Done`, the message of a finished chunk, are in bytes. Neither contains the job's sampling, so they don't
grow with a JSON schema.

Made by `python benchmarks/driver_memory.py`, which runs no Ray.

| chunks | state | work | its texts | `Done` | finished | parts listed | footers | `Done`, B | report, B |
|---|---|---|---|---|---|---|---|---|---|"""


ROWS_SURVEYED = 20_000_000
ROWS_PER_FILE = (10_000, ROWS_SURVEYED)
SURVEY_HEAD = f"""
Growth after the survey of {ROWS_SURVEYED:,} rows of JSONL, of 60 bytes each. Files below 4 MiB can be cut
every 8 rows, larger ones every 128.

| rows a file | survey, MiB | bytes a row | chunks of 4,096 rows, MiB |
|---|---|---|---|"""


class Growth:
    """Measures the MiB by which this process has grown since the last call."""

    def __init__(self) -> None:
        self._last = self._now()

    def __call__(self) -> float:
        """Return the growth in MiB."""
        now = self._now()
        grown, self._last = now - self._last, now
        return grown / 2**20

    @staticmethod
    def _now() -> int:
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        return int(psutil.Process().memory_full_info().uss)


def measure(chunks: int, state: str) -> list[float]:
    """Measure one line of the table."""
    from airflow_provider_raybatch.job.input.survey import Chunk
    from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
    from airflow_provider_raybatch.job.output.schema import footers
    from airflow_provider_raybatch.job.parts.part import Part, listed
    from airflow_provider_raybatch.job.run.watch import Ran
    from airflow_provider_raybatch.job.work import Done, work
    from airflow_provider_raybatch.storage.entry import Entry

    cut = [
        Chunk(0, number * ROWS_PER_CHUNK, ROWS_PER_CHUNK, number // 64, number % 64 * ROWS_PER_CHUNK, 0)
        for number in range(chunks)
    ]
    source: Any = SimpleNamespace(chunks=lambda rows: cut)
    resolved = np.full(chunks * ROWS_PER_CHUNK, state == "resumed")
    resolved[:: ROWS_PER_CHUNK + 1] = False
    resolved[ROWS_PER_CHUNK // 2 :: ROWS_PER_CHUNK] = False
    with tempfile.TemporaryDirectory() as place:
        folder, written = _parts(place)
        footers(folder, written[:1])
        grown, found = Growth(), []
        items = work(source, ROWS_PER_CHUNK, resolved)
        found.append(grown())
        texts = [{"item": pickle.dumps(item)} for item in items]
        found.append(grown())
        del texts
        reports = [
            ReplicaProgress(f"{number:032x}", f"{number:056x}", "ready", rows=10**6, input_tokens=10**9)
            for number in range(REPLICAS)
        ]

        def done(number: int) -> bytes:
            path = written[number % FOOTERS].path.replace("/00000000", f"/{number:08d}")
            size = written[number % FOOTERS].bytes  # which its name says
            part = Part(path, 512, 512, number * 512, number * 512 + 511, size)
            seconds = {"read": 0.01, "render": 0.02, "encode": 0.5, "generate": 60.0, "write": 0.1}
            return pickle.dumps(Done([part], seconds, reports[number % REPLICAS]))

        grown()
        messages = [done(number) for number in range(chunks)]
        in_messages = grown()
        ran = Ran()
        for message in messages:
            ran.add(pickle.loads(message), 0.0)
        found += [in_messages, grown()]
        size = len(messages[0])
        del messages
        grown()
        again = listed([
            Entry(part.path, part.bytes, f'"{number:032x}"') for number, part in enumerate(ran.parts)
        ])
        found.append(grown())
        kept = [footers(folder, written) for _ in range(max(1, chunks // FOOTERS))]
        found += [grown(), size, len(pickle.dumps(reports[0]))]
        assert len(items) == len(again) == chunks
        assert kept
    return found


def measure_survey(rows_per_file: int) -> list[float]:
    """Measure one line of the other table."""
    from airflow_provider_raybatch.contract.arguments.input import InputArguments
    from airflow_provider_raybatch.job.input.listing import resolve
    from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, cut, survey

    with tempfile.TemporaryDirectory() as place:
        for number in range(ROWS_SURVEYED // rows_per_file):
            Path(place, f"{number}.jsonl").write_bytes((b'{"text": "%s"}\n' % (b"x" * 46)) * rows_per_file)
        listing = resolve(InputArguments(source=[place]), None)
        survey(replace(listing, files=listing.files[:32]), None)  # what readers take once
        grown = Growth()
        surveyed = survey(listing, None)
        kept = grown()
        chunks = cut(surveyed, ROWS_PER_CHUNK, None)
        assert surveyed.rows == sum(chunk.rows for chunk in chunks) == ROWS_SURVEYED
        return [kept, kept * 2**20 / ROWS_SURVEYED, grown()]


def _parts(place: str) -> tuple[Any, list[Any]]:
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.parts.part import Part, write_all
    from airflow_provider_raybatch.job.row import Completion, Response, RowOutcome
    from airflow_provider_raybatch.job.tasks.registry import task_of
    from airflow_provider_raybatch.storage.folder import LocalFolder

    folder = LocalFolder(place)
    task = task_of(
        BatchInferenceSpec.model_validate({
            "source": ["/in"],
            "prompt": "{row.text}",
            "model": "echo",
            "destination": "/out",
        })
    )
    columns = pa.table({"id": [1], "text": ["a"], **{f"column{number}": [number] for number in range(10)}})
    answer = Response((Completion("yes", "stop", 1),), input_tokens=3, cached_tokens=0)
    stem = f"_raybatch/parts/{'a' * 16}/{'b' * 16}-{'c' * 16}/raybatch-{'d' * 32}-0~{'e' * 8}"
    (one,) = write_all(folder, f"{stem}/00000000", columns, [RowOutcome(0, answer, key=bytes(16))], task)
    # One file stands for all of them.
    return folder, [Part(one.path, 1, 1, 0, 0, one.bytes)] * FOOTERS


def main(sizes: list[int]) -> None:
    """Print the table."""
    print(HEAD)
    for chunks in sizes:
        for state in ("new", "resumed"):
            done = subprocess.run(
                [sys.executable, __file__, "--measure", str(chunks), state],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            *grown, message, report = json.loads(done.stdout.splitlines()[-1])
            figures = [*(f"{max(0.0, one):,.0f}" for one in grown), f"{message:,.0f}", f"{report:,.0f}"]
            print(f"| {chunks:,} | {state} | {' | '.join(figures)} |", flush=True)
    print(SURVEY_HEAD)
    for rows in ROWS_PER_FILE:
        done = subprocess.run(
            [sys.executable, __file__, "--survey", str(rows)], stdout=subprocess.PIPE, text=True, check=True
        )
        kept, a_row, of_chunks = json.loads(done.stdout.splitlines()[-1])
        print(f"| {rows:,} | {kept:,.0f} | {a_row:.1f} | {of_chunks:,.0f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--survey"]:
        print(json.dumps(measure_survey(int(sys.argv[2]))))
    elif sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]), sys.argv[3])))
    else:
        main([int(size) for size in sys.argv[1:]] or list(CHUNKS))
