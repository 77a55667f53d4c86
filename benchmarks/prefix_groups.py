# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike, in buckets and as they are stored: prefixes computed, bytes read, CPU time.

W3 of `throughput/workloads.py`: four rows on each of 1,000 documents of 2,000 tokens, in random order on
disk; and ten times as many documents. Replicas of `simulated_cluster.py` ask the real queue. Each keeps the
latest documents in a cache of prefixes, and sorts the rows of an order by prompt. Then the CPU time of a task
that brings rows together is measured, beside that of one that makes their request keys.

python benchmarks/prefix_groups.py > benchmarks/results/prefix_groups.md
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from simulated_cluster import Case, Pulling

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK
from airflow_provider_raybatch.job.preflight.input_check import look_at_source
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.row_keys import keys_of
from airflow_provider_raybatch.job.row_order.buckets import Cut, buckets, slices
from airflow_provider_raybatch.job.row_order.grouping import ByPrefix
from airflow_provider_raybatch.job.scheduling.queue import PullQueue
from airflow_provider_raybatch.job.scheduling.row_index import RowIndex
from airflow_provider_raybatch.job.work import Job, work
from airflow_provider_raybatch.storage.folder import LocalFolder

SEED = 20261124
QUESTIONS = 4
SLOTS = 256
CACHED = 450
"""Documents that the KV cache of a replica holds; that of an H200 with an 8B model holds fewer than 500."""
ANSWER, DOCUMENT = 16.0, 64.0
"""Steps of a row: its answer, and its document where that is not in the cache."""
ROW_BYTES = 8000
ROW_GROUP, BUCKET = 250, 8192
"""Rows of a piece: as stored, and of 64 MiB."""
HEAD = """# Rows with a common prefix, brought together

`python benchmarks/prefix_groups.py` on {cores} CPU cores without a GPU, Python {python}, numpy {numpy},
pyarrow {pyarrow}. Workload W3: four rows on each of 1,000 documents of 2,000 tokens (8,000 characters), in
random order; and ten times as many.

## Prefixes computed, in simulation

The real pull queue, with a simulated clock and replicas of {slots} slots, whose speeds differ by up to a
factor of two. Each has a cache for {cached} documents, and sorts the rows of an order by prompt. *As stored*:
in the order on disk, in row groups of {group} rows. *Buckets*: CPU tasks have brought rows with a common
prefix together, in buckets of 64 MiB. *Computed*: how often a document is computed, in the mean; 1 is the
least, 4 the most. *Working*: replicas that came before the rows were given out. *Fetched*: what they take
from Ray's object store, as a multiple of the input, if each is on a node of its own.

| documents | replicas | working | computed, as stored | in buckets | ratio | fetched |
|---|---|---|---|---|---|---|"""
COSTS = """
Storage is read once, by replicas or by tasks; `tests/unit/job/replica/test_bytes_read.py` counts
bytes with eight replicas: at most 1.1 times the input in both cases, and none by replicas in buckets.

## What it costs

One task reads {rows:,} rows of W3 ({documents:,} documents) from a Parquet file. Its CPU time is compared
with that of their request keys, in the same run; medians of {runs} runs each, in turn.

| | microseconds a row | to request keys |
|---|---|---|"""


class Documents(Pulling):
    """Replicas with a cache of prefixes.

    :param document: of each row, in the order in which the queue numbers rows.
    :param piece_rows: rows of each piece.
    """

    def __init__(self, case: Case, document: list[int], piece_rows: Sequence[int]) -> None:
        super().__init__(case)
        self.pieces = RowIndex(piece_rows, [rows * ROW_BYTES for rows in piece_rows])
        self.queue = PullQueue(self.pieces)
        self.queue.starting = len(self.replicas)
        self.document = document
        self.caches = [OrderedDict[int, None]() for _ in self.replicas]
        self.computed = 0
        self.fetched: set[tuple[int, int]] = set()

    def joined(self, now: float, number: int, _: Any) -> None:
        """A replica's engine is ready."""
        self.queue.starting -= 1
        super().joined(now, number, _)

    def opened(self, now: float, number: int, rows: list[int]) -> None:
        """Rows are ready for the engine: sorted by prompt."""
        self.fetched.update((number, piece) for piece in self.pieces.split(np.array(rows, np.int64)))
        super().opened(now, number, sorted(rows, key=lambda row: self.document[row]))

    def begin(self, now: float, number: int) -> None:
        """Let waiting rows take free slots; one whose document is not cached computes it."""
        replica, cache = self.replicas[number], self.caches[number]
        while replica.free and replica.waiting:
            row = replica.waiting.popleft()
            document = self.document[row]
            is_new = document not in cache
            cache[document] = None
            cache.move_to_end(document)
            if len(cache) > CACHED:
                cache.popitem(last=False)
            self.computed += is_new
            replica.free -= 1
            self.at(now + (ANSWER + DOCUMENT * is_new) / replica.speed, self.ended, number, row)

    @property
    def bytes_fetched(self) -> int:
        """Bytes of each replica's pieces, added up."""
        return sum(int(self.pieces.sizes[piece]) for _, piece in self.fetched)


def simulated(replicas: int, document: np.ndarray, piece_rows: Sequence[int]) -> Documents:
    """Run one case to its end."""
    random = np.random.default_rng([SEED, replicas])
    starts, speeds = random.uniform(0, 5, replicas), random.uniform(10, 20, replicas)
    case = Case("W3", SLOTS, np.full(len(document), int(ANSWER)), starts, speeds)
    found = Documents(case, document.tolist(), piece_rows)
    found.run()
    return found


def in_buckets(document: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return documents in the order of buckets, and the rows of each bucket."""
    digests = np.array([zlib.crc32(b"%d" % one) for one in document.tolist()], np.uint64)
    number = -(-len(document) // BUCKET)
    order = np.argsort(digests, kind="stable")
    rows = np.bincount((digests * np.uint64(number) >> np.uint64(32)).astype(int), minlength=number)
    return document[order], rows.tolist()


def lines_of_simulation() -> None:
    """Print the first table."""
    for documents in (1000, 10_000):
        stored = np.random.default_rng(SEED).permutation(np.repeat(np.arange(documents), QUESTIONS))
        groups = [ROW_GROUP] * (len(stored) // ROW_GROUP)
        together = in_buckets(stored)
        size = len(stored) * ROW_BYTES
        for replicas in (1, 2, 8, 64):
            before, after = simulated(replicas, stored, groups), simulated(replicas, *together)
            cells = (
                f"{len({number for number, _ in after.fetched})}",
                f"{before.computed / documents:.2f}",
                f"{after.computed / documents:.2f}",
                f"{before.computed / after.computed:.2f}",
                f"{after.bytes_fetched / size:.2f}",
            )
            print(f"| {documents:,} | {replicas} | {' | '.join(cells)} |", flush=True)


def costs(folder: Path, documents: int = 4000, runs: int = 5) -> None:
    """Print the second table, of rows in a folder."""
    random = np.random.default_rng(SEED)
    texts = [random.integers(0, 16, 4000).astype(np.uint8).tobytes().hex() for _ in range(documents)]
    stored = random.permutation(np.repeat(np.arange(documents), QUESTIONS)).tolist()
    prompts = [f"{texts[document]} question {number}" for number, document in enumerate(stored)]
    pq.write_table(pa.table({"text": prompts}), folder / "in.parquet", row_group_size=ROWS_PER_CHUNK)
    spec = BatchInferenceSpec.model_validate({
        "source": [str(folder / "in.parquet")],
        "prompt": "{row.text}",
        "model": "echo",
        "engine": "echo",
        "destination": str(folder / "out"),
    })
    source = look_at_source(spec, None)
    job = Job(spec, source.listing, LocalFolder(spec.destination), "parts", Keyer(spec, {}, Digests()))
    items = work(source, ROWS_PER_CHUNK, np.zeros(source.rows, np.bool_))
    cut = Cut(job, ByPrefix(2000, 2), np.dtype(np.uint32))

    def together() -> None:
        found, *made = slices(items, cut)
        buckets([found], [made], most=len(stored))

    seconds = [(cpu(lambda: keys_of(items, job)), cpu(together)) for _ in range(runs)]
    keys, tasks = np.median(np.array(seconds), axis=0) * 1e6 / len(stored)
    print(COSTS.format(rows=len(stored), documents=documents, runs=runs))
    print(f"| request keys | {keys:.0f} | 1.00 |")
    print(f"| buckets | {tasks:.0f} | {tasks / keys:.2f} |")


def cpu(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    """Print the page."""
    versions = {name: version(name) for name in ("numpy", "pyarrow")}
    python = platform.python_version()
    print(
        HEAD.format(
            cores=os.cpu_count(), python=python, slots=SLOTS, cached=CACHED, group=ROW_GROUP, **versions
        )
    )
    lines_of_simulation()
    with tempfile.TemporaryDirectory() as folder:
        costs(Path(folder))


if __name__ == "__main__":
    main()
