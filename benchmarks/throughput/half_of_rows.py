# SPDX-License-Identifier: Apache-2.0
"""All rows of W2 and half of them, on one GPU with a warm engine: what two GPUs can reach at most.

Each of two GPUs gets half of the rows, so two take at least as long as one does for half of them: every
second one of the longest first. Jobs run as planned, or with other numbers of rows in the engine
(`rows_in_flight`). Prints a JSON line a job, and at the end `ratios` of medians over the turns. Needs as many
VARIANTS of `workloads.py` as jobs.

usage: half_of_rows.py DATA_FOLDER OUT_FOLDER ENGINE_ARGS_JSON TURNS [ROWS_IN_FLIGHT...]
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path

import pyarrow.parquet as pq
from start_up import some
from two_gpus import SAMPLING_OF_ROWS, result, start_ray
from workloads import variant_of

KEPT = 600
"""Seconds for which the engine waits for the next job."""


def main() -> None:
    data, out, engine, turns, *numbers = sys.argv[1:]
    fields = {"engine_args": json.loads(engine), "keep_warm": KEPT, **json.loads(SAMPLING_OF_ROWS)}
    fields["model"] = f"{data}/model"
    start_ray(gpus=1)
    few = some(Path(data) / "W2", Path(out) / "rows")
    result(few.parent, Path(out), few.name, 1, fields)
    in_flight = {"as planned": None, **{f"{number} in flight": int(number) for number in numbers}}
    variants = itertools.count(1)
    seconds: dict[str, dict[str, list[float]]] = {way: {"all": [], "half": []} for way in in_flight}
    for _, (way, rows), part in itertools.product(range(int(turns)), in_flight.items(), ("all", "half")):
        source = Path(data) / variant_of("W2", next(variants))
        if part == "half":
            source = half(source, Path(out) / "half")
        found = result(source.parent, Path(out), source.name, 1, {**fields, "rows_in_flight": rows})
        print("RESULT", json.dumps({"rows in flight": way, "part": part, **found}), flush=True)
        seconds[way][part].append(found["seconds"])
    ratios = {
        f"all rows to half of them, {way}": round(
            statistics.median(found["all"]) / statistics.median(found["half"]), 3
        )
        for way, found in seconds.items()
    }
    print("RESULT", json.dumps({"each": seconds, "ratios": ratios}), flush=True)


def half(source: Path, folder: Path) -> Path:
    """Every second row of the longest first, in the order on disk."""
    rows = pq.read_table(source)
    longest = rows.sort_by([("max_tokens", "descending"), ("id", "ascending")])
    taken = longest.take(list(range(0, longest.num_rows, 2))).sort_by("id")
    place = folder / source.name
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(taken, place / "rows.parquet")
    return place


if __name__ == "__main__":
    main()
