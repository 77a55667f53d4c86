# SPDX-License-Identifier: Apache-2.0
"""The memory of a driver, by the number of chunks of its input.

Each line is its own process, which does the driver's steps with chunks: the list of work and its texts for
Ray, the reports of finished chunks, the listing of parts, and their footers when the dataset is published. No
Ray runs, so the memory of Ray Data itself is not included.

    python benchmarks/driver_memory.py [CHUNKS ...] > benchmarks/results/driver_memory.md
"""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import tempfile
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
        return int(psutil.Process().memory_full_info().uss)


def measure(chunks: int, state: str) -> list[float]:
    """Measure one line of the table."""
    from airflow_provider_raybatch.job.execution.pool import Ran
    from airflow_provider_raybatch.job.input.survey import Chunk
    from airflow_provider_raybatch.job.monitor.board import ReplicaReport
    from airflow_provider_raybatch.job.output.schema import footers
    from airflow_provider_raybatch.job.parts.part import Part, listed
    from airflow_provider_raybatch.job.reuse.remaining import work
    from airflow_provider_raybatch.job.work import Done
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
            ReplicaReport(f"{number:032x}", f"{number:056x}", "ready", rows=10**6, input_tokens=10**9)
            for number in range(REPLICAS)
        ]

        def done(number: int) -> bytes:
            path = written[number % FOOTERS].path.replace("/00000000", f"/{number:08d}")
            part = Part(path, 512, 512, number * 512, number * 512 + 511, 10**6)
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


def _parts(place: str) -> tuple[Any, list[Any]]:
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.parts.part import Part, write
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
    one = write(folder, f"{stem}/00000000", columns, [RowOutcome(0, answer, key=bytes(16))], task)
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]), sys.argv[3])))
    else:
        main([int(size) for size in sys.argv[1:]] or list(CHUNKS))
