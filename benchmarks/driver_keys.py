# SPDX-License-Identifier: Apache-2.0
"""The memory and time that a driver takes to resolve rows by their request keys.

Each line is its own process. It gets keys as CPU tasks return them, 16,384 at a time, finds rows that ask the
same, and looks the others up in a store that has a response to 99 of 100. Nothing is rendered or read, and
nothing written but temporary files.

    python benchmarks/driver_keys.py [ROWS ...] > benchmarks/results/driver_keys.md
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

SIZES = (1_000_000, 8_000_000, 32_000_000)
CASES = {"sampled, each twice": (2, False), "no two alike, and a store": (1, True)}
BATCH = 16 * 1024
HEAD = f"""# Memory of a driver that resolves rows by their keys

Growth of its process at the peak and after the search, and CPU time, without what renders rows and makes
keys; 2 cores, Python {platform.python_version()}. Temporary files are not in it.

Made by `python benchmarks/driver_keys.py`.

| rows | | peak, MiB | a row, bytes | after it, MiB | CPU, s | a row, microseconds |
|---|---|---|---|---|---|---|"""


class MostlyFull:
    """A store that has a response to 99 of 100 keys."""

    def lookup(self, keys: Any) -> Any:
        """Find `keys`."""
        from airflow_provider_raybatch.job.request import key_array
        from airflow_provider_raybatch.job.reuse.row_keys import Hits

        places = np.flatnonzero(key_array.first_halves(keys) % 100 > 0)
        return Hits(places, places // 65_536, places % 65_536)


def measure(rows: int, times: int, has_store: bool) -> list[float]:
    """Measure one line of the table."""
    from airflow_provider_raybatch.job.request import key_array
    from airflow_provider_raybatch.job.reuse.partitions import Partitions
    from airflow_provider_raybatch.job.reuse.repeats import CachedResponses, ReuseResolver
    from airflow_provider_raybatch.job.reuse.reuse import all_repeats
    from airflow_provider_raybatch.job.reuse.row_keys import CachedRows, RequestKeys, ranges_for

    process, number = psutil.Process(), ranges_for(rows)
    before, began = process.memory_info().rss, time.process_time()
    nothing: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
    own = Partitions(RequestKeys, number)
    for start in range(0, rows, BATCH):
        ordinals = np.arange(start, min(rows, start + BATCH))
        made = keys_of(ordinals % (rows // times))
        own.add(
            RequestKeys(ordinals, made, np.full(len(ordinals), has_store)), key_array.range_of(made, number)
        )
    store: Any = MostlyFull()
    found = [CachedResponses(Partitions(CachedRows, number), store, "stored")] if has_store else []
    resolver = ReuseResolver(rows, nothing, found)
    resolver.resolve(all_repeats(own), own if found else None)
    repeated = len(resolver.repetitions)
    seconds, after = time.process_time() - began, process.memory_info().rss
    assert repeated == rows - rows // times
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [peak - before, after - before, seconds]


def keys_of(requests: npt.NDArray[np.int64]) -> Any:
    """A key for each request: two outputs of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = np.stack([requests, ~requests], axis=1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.ascontiguousarray(mixed ^ (mixed >> np.uint64(31))).view("S16").reshape(-1)


def main(sizes: list[int]) -> None:
    """Print the table."""
    print(HEAD)
    for rows in sizes:
        for name, (times, has_store) in CASES.items():
            command = [sys.executable, __file__, "--measure", str(rows), str(times), str(int(has_store))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            peak, after, seconds = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {rows:,} | {name} | {peak / 2**20:,.0f} | {peak / rows:.0f} | {after / 2**20:,.0f} "
                f"| {seconds:.1f} | {seconds / rows * 1e6:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        _, _, rows, times, has_store = sys.argv
        print(json.dumps(measure(int(rows), int(times), has_store == "1")))
    else:
        main([int(size) for size in sys.argv[1:]] or list(SIZES))
