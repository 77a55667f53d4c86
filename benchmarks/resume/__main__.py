# SPDX-License-Identifier: Apache-2.0
"""The cost of a resume before the first missing row reaches an engine.

Ours is the work of a job: read the source's metadata and the ledger, search answers of equal rows (with and
without a response store), and list the work. Ray Data's checkpoint filters the same input by the ids of
finished rows. All run on the same Parquet files, each time in a fresh process.
Memory is the peak of all processes below it, less their memory before they read the input.

    python benchmarks/resume [--ray] [ROWS ...] > benchmarks/results/resume.md

`--ray` adds Ray Data's checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from places import Place
from s3_server import S3
from states import STATES, STORED, SUBMISSIONS, prepare
from systems import ours, ray_data

ROWS = (1_000_000, 10_000_000)
LARGEST_IN_S3 = 1_000_000
"""Larger inputs are measured on a disk, and in the two states that open most and fewest files."""
ROUNDS = 3
LATENCY = 0.04
"""Seconds that S3 takes to answer a request, about."""
HEAD = f"""# Resume

Seconds from the first read of the input until the missing rows can be asked: source, ledger, reusable
answers, list of work, with `deduplicate` on. `reuse`: a response store with {STORED:,} other responses as
well. CPU: of the driver, all threads. Opened: files of the ledger that were read. MiB: growth of memory. The
best of {ROUNDS} rounds, each in a fresh process. Missing rows are keyed in this process; a job spreads that
over the cluster.

- *whole*: one earlier submission, one row is missing.
- *worn*: {SUBMISSIONS} earlier submissions; of ten parts, one has a failed row and one lacks a row; every
  hundredth row repeats the request of the row before it.
- *frayed*: as worn, and every other part has a failed row as well, so no part's name is enough.
- *stopped*: as worn, and the last quarter of the rows is missing.

In S3, source, destination and store are in a bucket of moto's server, a Python process on the same cores,
which needs more time for a request than the driver. So requests are counted, and the last column is the same
with {LATENCY * 1000:.0f} ms before each answer, about what S3 takes.
"""


def measured(place: Place, system: str) -> dict[str, float]:
    """Measure once, in its own process."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", place.root, str(place.local), place.endpoint, system],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        },
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def best(place: Place, system: str, s3: S3 | None) -> dict[str, float]:
    """Return the best of several rounds; requests without the first one, a warm-up."""
    rounds = []
    for _ in range(ROUNDS):
        before = s3.requests if s3 else 0
        found = measured(place, system)
        rounds.append({**found, "requests": s3.requests - before - _WARM_UP} if s3 else found)
    return {name: min(one[name] for one in rounds) for name in rounds[0]}


_WARM_UP = 2
"""Requests of an empty listing: the listing, and the look for a file of that name."""


def block(rows: int, state: str, in_s3: bool = False, ray: bool = False) -> None:
    """Print the lines of one prepared state."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        s3 = S3() if in_s3 else None
        with s3.serve(folder) if s3 else contextlib.nullcontext(Place(str(folder), folder)) as place:
            prepare(place, rows, state)
            for name, system in (("resume", "ours"), ("resume, `reuse`", "reuse")):
                found = best(place, system, s3)
                if s3:
                    s3.latency = LATENCY
                    found["slow"] = best(place, system, s3)["seconds"]
                    s3.latency = 0.0
                _show(f"{rows:,} | {state}, {'S3' if s3 else 'disk'} | {name}", found)
            if ray:
                _show(f"{rows:,} | {state}, disk | Ray Data checkpoint", measured(place, "ray"))
    finally:
        shutil.rmtree(folder)


def _show(title: str, found: dict[str, float]) -> None:
    def shown(name: str, form: str) -> str:
        return format(found[name], form) if name in found else ""

    figures = [shown("missing", ",.0f"), shown("seconds", ".2f"), shown("cpu", ".2f")]
    figures += [shown(name, ",.0f") for name in ("opened", "requests")]
    figures += [shown("slow", ".2f"), shown("mib", ",.0f")]
    print(f"| {title} | {' | '.join(figures)} |", flush=True)


def main(sizes: list[int], ray: bool) -> None:
    """Print the table."""
    print(HEAD)
    print(
        f"Ray {importlib.metadata.version('ray')}, pyarrow {pa.__version__}; local disk, 2 CPU cores, 24 GiB,"
    )
    print("no GPU. Made by `python benchmarks/resume`.\n")
    print("| rows | state | system | left | seconds | CPU s | opened | requests | s at 40 ms | MiB |")
    print(f"|{'---|' * 10}")
    for rows in sizes:
        for state in STATES if rows <= LARGEST_IN_S3 else ("whole", "frayed"):
            block(rows, state, ray=ray and state == "whole")
            if rows <= LARGEST_IN_S3 and state in ("worn", "stopped"):
                block(rows, state, in_s3=True)


def _measure(root: str, local: str, endpoint: str, system: str) -> dict[str, float]:
    if system == "ray":
        return ray_data(Path(local))
    return ours(Place(root, Path(local), endpoint), system == "reuse")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--measure"]:
        print(json.dumps(_measure(*given[1:])))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("rows", type=int, nargs="*", default=list(ROWS))
        parser.add_argument("--ray", action="store_true")
        options = parser.parse_args()
        main(options.rows, options.ray)
