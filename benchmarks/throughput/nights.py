# SPDX-License-Identifier: Apache-2.0
"""Rows that are generated twice: nights with a response store, and nights with a SIGKILL in the middle.

Nights, each with `reuse`: the first; the second with 1 % of the rows changed; a third where nothing changed.
Kills come when half of the rows are in part files. One hits vLLM's engine process, whose replica the running
job restarts; one hits the job's driver, which a second attempt replaces, as a retry of the task would.

`generated` are the rows that engines answered, over all their processes: by the manifest in the last attempt,
and by the last progress line, a few seconds before the kill, in an attempt whose driver was killed. Prints
one JSON line each.

usage: nights.py DATA_FOLDER OUT_FOLDER WORKLOAD_OF_NIGHTS WORKLOAD_OF_KILLS [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from job import Task, planned, start_cluster

CHANGED_EVERY = 100


def main() -> None:
    data, out, of_nights, of_kills = (Path(argument) for argument in sys.argv[1:5])
    engine = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    start_cluster()
    model = data / "model"
    store = {"reuse": str(out / "store")}
    if of_nights.name != "-":
        source = data / of_nights
        changed = with_changes(source, out / "changed")
        for name, rows in (("first", source), ("1 % changed", changed), ("nothing changed", changed)):
            report(name, Task(rows, model, out / "nights", {"engine_args": engine, **store}), whole)
    if of_kills.name != "-":
        for name, victim in (("engine", engine_of), ("driver", driver_of)):
            task = Task(data / of_kills, model, out / "kills", {"engine_args": engine})
            report(f"{name} killed", task, partial(killed, victim=victim))


def with_changes(source: Path, folder: Path) -> Path:
    """Copy rows; the user's message of every hundredth one has one more word."""
    folder.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            if row["id"] % CHANGED_EVERY == 0:
                row["messages"][-1]["content"] += " again"
        pq.write_table(pa.Table.from_pylist(rows), folder / path.name, compression="zstd")
    return folder


def report(name: str, task: Task, run: Callable[[Task], int]) -> None:
    """Run the task, check its dataset, and print its cost.

    :param run: runs all attempts; returns the number of rows that were generated and are in no manifest.
    """
    start = time.monotonic()
    before = run(task)
    manifest = task.manifest()
    seconds = time.monotonic() - start
    wanted = planned(task.source)
    ids = pq.read_table(manifest["uri"], columns=["id"])["id"].to_pylist()
    assert sorted(ids) == list(range(wanted["rows"])), "rows are lost or duplicated"
    assert manifest["counts"]["error"] == 0, "rows failed"
    result = {
        "night": name,
        "rows": wanted["rows"],
        "output_tokens": wanted["output"],
        **{key: manifest["counts"][key] for key in ("resumed", "reused", "duplicates")},
        "generated": before + sum(replica["rows"] for replica in manifest["replicas"]),
        "attempts": task.attempts,
        "seconds": round(seconds, 1),
        "timing": manifest["timing"],
        "replicas": [
            {key: replica[key] for key in ("rows", "output_tokens", "startup_seconds", "gpu_utilization")}
            for replica in manifest["replicas"]
        ],
    }
    print("RESULT", json.dumps(result), flush=True)


def whole(task: Task) -> int:
    task.run()
    return 0


def killed(task: Task, victim: Callable[[subprocess.Popen[str]], int]) -> int:
    driver = task.start(stdout=subprocess.PIPE)
    half = planned(task.source)["rows"] // 2
    lines = Lines(driver)
    while (written := rows_in_parts(task.destination)) < half:
        if driver.poll() is not None:
            raise SystemExit("the job ended before half of its rows were written")
        time.sleep(0.2)
    pid = victim(driver)
    os.kill(pid, signal.SIGKILL)
    print(f"killed when {written} rows were in parts", flush=True)
    if driver.wait() == 0:
        return 0
    if pid != driver.pid:
        raise SystemExit("the job did not outlive its engine")
    lines.join()
    task.run()
    return lines.done


class Lines(threading.Thread):
    """Reads the output of a driver, and the rows that it reported as done."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        super().__init__()
        self.done = 0
        self._driver = driver
        self.start()

    def run(self) -> None:
        """Read until the driver's end."""
        assert self._driver.stdout is not None
        for text in self._driver.stdout:
            print(text, end="", flush=True)
            # Without a follower there is no key, so the driver's events are plain text.
            progress = re.match(r"([\d,]+) of [\d,]+ rows", text)
            if progress is not None:
                self.done = int(progress[1].replace(",", ""))


def rows_in_parts(destination: Path) -> int:
    parts = destination.glob("_raybatch/parts/**/*.parquet")
    return sum(pq.read_metadata(part).num_rows for part in parts)


def driver_of(driver: subprocess.Popen[str]) -> int:
    return driver.pid


def engine_of(_: subprocess.Popen[str]) -> int:
    """Return the engine process of vLLM, by its name."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if "EngineCore" in " ".join([process.info["name"] or "", *(process.info["cmdline"] or [])]):
            return int(process.pid)
    raise SystemExit("no process is named EngineCore")


if __name__ == "__main__":
    main()
