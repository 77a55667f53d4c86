# SPDX-License-Identifier: Apache-2.0
"""The cost of looking up a night's keys in stores of 100,000 to 10 million responses.

Run ``python benchmarks/response_store.py [ROUNDS]``. One store grows night by night through the same `add`
that a job calls, with its compactions. At each size, fresh processes look up 100,000 keys, 1,000 of them new,
and read the responses. Writes ``benchmarks/results/response_store.md``.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.request.key_array import Keys, to_arrow
from airflow_provider_raybatch.job.reuse.store.compaction import MANY
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.tasks.generate import COMPLETION, output_type
from airflow_provider_raybatch.storage.file import Entry
from airflow_provider_raybatch.storage.folder import LocalFolder

NIGHT = 100_000
NEW = NIGHT // 100
SIZES = (NIGHT, 10 * NIGHT, 50 * NIGHT, 100 * NIGHT)
GENERATION = NIGHT / 1_323
"""Seconds that one H200 takes for a night without hits: rows/s by `benchmarks/results/throughput.md`, W1."""
MOSTLY_HITS = 42.4 + 9.8 + NEW / 1_323
"""The same with 99 % hits: start-up of the engine, preflight and the new rows, by the same table."""
DELAY = 0.04
"""Seconds; about what a request to S3 takes."""
RESULT = Path(__file__).parent / "results/response_store.md"


class Reading(NamedTuple):
    """Figures of one process; sizes in MiB. `far` has the seconds with a delay before each request."""

    hits: int
    seconds: float
    cpu_seconds: float
    grown: float
    megabytes: float
    requests: int
    reading_seconds: float
    reading_cpu_seconds: float
    reading_grown: float
    reading_megabytes: float
    reading_requests: int
    far: float
    reading_far: float


class Counting(LocalFolder):
    """A local folder that counts reads and answers as late as S3; for one process only."""

    delay = 0.0
    read_bytes = 0
    requests = 0

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Read and count."""
        time.sleep(Counting.delay)
        content = super().read_range(path, start, length)
        Counting.read_bytes += len(content)
        Counting.requests += 1
        return content

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        """List after the delay."""
        time.sleep(Counting.delay)
        return super().list(prefix, depth)

    def head(self, path: str) -> Entry | None:
        """Read metadata after the delay."""
        time.sleep(Counting.delay)
        return super().head(path)


class Stand(NamedTuple):
    """The state of this process: seconds, and MiB of peak memory and of reads."""

    seconds: float
    cpu_seconds: float
    peak: float
    megabytes: float
    requests: int

    @classmethod
    def now(cls) -> Stand:
        """Return the present state."""
        # Not getrusage(), whose peak begins with that of the parent process.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return cls(
            time.perf_counter(),
            time.process_time(),
            int(status["VmHWM"].split()[0]) / 1024,
            Counting.read_bytes / 2**20,
            Counting.requests,
        )

    def since(self, before: Stand) -> list[float]:
        """Return the difference."""
        return [now - then for now, then in zip(self, before, strict=True)]


def keys_of(night: int) -> Keys:
    """Return the keys of one night, in the order of its input."""
    return np.frombuffer(np.random.default_rng(night).bytes(16 * NIGHT), dtype="S16")


def responses(night: int) -> Iterator[pa.Table]:
    """Yield a night's rows as parts of 5,000 each: short labels, 13 tokens in and 8 out."""
    numbers = np.random.default_rng(-night % 2**32).integers(0, 5000, NIGHT)
    text = pc.binary_join_element_wise(
        "Manufacture of machinery and equipment,", pa.array(numbers).cast("str"), " "
    )
    stop, eight = pa.repeat("stop", NIGHT), pa.repeat(8, NIGHT)
    completion = pa.StructArray.from_arrays([text, stop, eight], fields=list(COMPLETION))
    completions = pa.ListArray.from_arrays(np.arange(NIGHT + 1, dtype=np.int32), completion)
    columns = [text, stop, pa.repeat(13, NIGHT), pa.repeat(0, NIGHT), eight, completions]
    output = pa.StructArray.from_arrays(columns, fields=list(output_type(True)))
    table = pa.table({"key": to_arrow(keys_of(night)), "output": output})
    for start in range(0, NIGHT, 5000):
        yield table.slice(start, 5000)


def asked(nights: int, spread: bool) -> Keys:
    """Return keys to look up: last night's or, with `spread`, equally many of each night; and new ones."""
    new = keys_of(1_000_000)[:NEW]
    if not spread:
        return np.unique(np.concatenate([keys_of(nights - 1)[NEW:], new]))
    each = (NIGHT - NEW) // nights
    return np.unique(np.concatenate([*(keys_of(night)[-each:] for night in range(nights)), new]))


def measure(root: str, keys_file: str) -> Reading:
    """Look up and read in this process."""
    keys = np.load(keys_file)
    store = ResponseStore(Counting(root), print)
    with tempfile.TemporaryDirectory() as other:
        # The import of libraries at first use is not part of a look-up.
        small = ResponseStore(LocalFolder(other), print)
        small.add("s", [next(responses(0)).slice(0, 10)])
        list(small.read(small.lookup(np.unique(keys_of(0)[:10]))))

    # The peak begins anew from the present memory.
    Path("/proc/self/clear_refs").write_text("5")
    at_first = Stand.now()
    hits = store.lookup(keys)
    looked = Stand.now()
    rows = sum(table.num_rows for table in store.read(hits))
    done = Stand.now()
    if rows != len(hits):
        raise SystemExit(f"{rows} of {len(hits)} hits could be read")
    Counting.delay = DELAY
    far = Stand.now()
    store.lookup(keys)
    far_looked = Stand.now()
    sum(table.num_rows for table in store.read(hits))
    far_seconds = [far_looked.seconds - far.seconds, Stand.now().seconds - far_looked.seconds]
    return Reading(len(hits), *looked.since(at_first), *done.since(looked), *far_seconds)  # type: ignore[arg-type]


def measured(root: str, nights: int, spread: bool, rounds: int) -> Reading:
    """Return medians over fresh processes, after one that fills the file cache."""
    with tempfile.TemporaryDirectory() as place:
        keys_file = f"{place}/keys.npy"
        np.save(keys_file, asked(nights, spread))
        readings = []
        for _ in range(rounds + 1):
            completed = subprocess.run(
                [sys.executable, __file__, "--measure", root, keys_file],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=300,
            )
            readings.append(Reading(*json.loads(completed.stdout.splitlines()[-1])))
    return Reading(*(statistics.median(column) for column in zip(*readings[1:], strict=True)))


def lines(found: list[tuple[int, bool, Reading]]) -> Iterator[str]:
    """Yield the rows of the table."""
    for rows, spread, one in found:
        where = "all nights" if spread else "last night"
        yield (
            f"| {rows:,} | {where} | {one.hits:,.0f} | {one.seconds:.2f} | {one.cpu_seconds:.2f} "
            f"| {one.seconds / GENERATION:.2%} | {one.seconds / MOSTLY_HITS:.2%} | {one.far:.2f} "
            f"| {one.grown:.0f} | {one.megabytes:.1f} | {one.requests:.0f} "
            f"| {one.reading_seconds:.2f} | {one.reading_far:.2f} | {one.reading_grown:.0f} "
            f"| {one.reading_megabytes:.1f} | {one.reading_requests:.0f} |"
        )


def main(rounds: int) -> None:
    """Build, measure and write the result."""
    found, adding, reports = list[tuple[int, bool, Reading]](), list[float](), list[str]()
    with tempfile.TemporaryDirectory() as root:
        store = ResponseStore(LocalFolder(root), print)
        for night in range(SIZES[-1] // NIGHT):
            tables = list(responses(night))
            began = time.perf_counter()
            store.add(f"raybatch-benchmark-{night}", tables)
            adding.append(time.perf_counter() - began)
            rows = (night + 1) * NIGHT
            if rows in SIZES:
                reports.append(store.size().text())
                for spread in (False, True)[: 1 if night == 0 else 2]:
                    found.append((rows, spread, measured(root, night + 1, spread, rounds)))
                    print(*lines(found[-1:]), flush=True)
        began = time.perf_counter()
        done = store.compact()
        compacting = time.perf_counter() - began
        compacting_peak = Stand.now().peak
    versions: dict[str, Any] = {
        "Python": platform.python_version(),
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
    }
    table = "\n".join(lines(found))
    text = f"""# Look-up in the response store

| responses stored | hits are of | hits of {NIGHT:,} keys | look-up s | CPU s | of 76 s | of 53 s \
| s at 40 ms | peak + MiB | MiB read | reads | reading hits s | s at 40 ms | peak + MiB | MiB read | reads |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}

Each line: medians of {rounds} fresh processes on a local disk with its pages cached. "Peak +" is the growth
of the peak resident memory during the call (`VmHWM`; a process inherits `ru_maxrss` from its parent). Eight
segments are read at a time, of up to 10 MB each: from there on the peak does not grow with the store. "Reads"
are requests where the store is in S3; "s at 40 ms" is the same with 40 ms of sleep before each request, about
what S3 takes to answer. Reading hits returns the responses; it replaces generation and is not part of the
look-up.

The reference wall times: {NIGHT:,} rows at the 1,323 rows/s that vLLM reached on one H200
([throughput](throughput.md), W1) are {GENERATION:.0f} s of generating. With 99 % hits little remains to be
generated, and the night takes about {MOSTLY_HITS:.0f} s: 42.4 s start-up of the engine, 9.8 s preflight and
the {NEW:,} new rows.

The store: {NIGHT:,} short responses a night through `ResponseStore.add`, which compacts after every
{MANY + 1} small segments. A night's add took {statistics.median(adding):.2f} s in the middle and
{max(adding):.2f} s at most, compaction included; the whole build peaked at {compacting_peak:.0f} MiB, with a
night's rows in memory. A last compaction of the largest store merged {done.merged} segments in
{compacting:.2f} s. The store at each size:

""" + "\n".join(f"- {report}" for report in reports)
    text += (
        f"\n\n2 CPU cores, 24 GiB, no GPU, shared with other work (load {os.getloadavg()[1]:.0f} on average "
        "over 5 minutes, so wall time is longer than alone); "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}.\n\n"
        "Made by `python benchmarks/response_store.py`.\n"
    )
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*sys.argv[2:])))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
