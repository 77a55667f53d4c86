# SPDX-License-Identifier: Apache-2.0
"""CPU time of a row besides its engine, by step and by process, and the driver's memory.

The real job runs with the echo engine, which answers at once, on a Ray of this machine. CPU time is user and
system time of the driver and of every process of that Ray, including its daemons and workers, so other work
on the machine changes little. A step is the time between two events of the job.

    python benchmarks/cpu_a_row.py --rows 3000000               # one file of JSON lines
    python benchmarks/cpu_a_row.py --rows 20000 --files 20000   # a row a file
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

TEXT = "The company of row {} makes harbors, lanterns, orchards, copper, meadows and quartz for a living."
LOOK = 0.2


class Usage:
    """Samples CPU seconds by step and by kind of process, and each kind's largest size."""

    def __init__(self) -> None:
        self.by_step: dict[str, float] = defaultdict(float)
        self.by_kind: dict[str, float] = defaultdict(float)
        self.seconds: dict[str, float] = defaultdict(float)
        self.largest: dict[str, int] = defaultdict(int)
        self._step, self._began = "start", time.monotonic()
        self._seen = {process.pid: used for process, used in self._all()}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Usage:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self.begin("end")

    def begin(self, step: str) -> None:
        """Begin another step."""
        self._sample()
        now = time.monotonic()
        self.seconds[self._step] += now - self._began
        self._step, self._began = step, now

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            for process, used in self._all():
                more = used - self._seen.get(process.pid, 0.0)
                self._seen[process.pid] = used
                self.by_step[self._step] += more
                self.by_kind[kind(process)] += more
                with contextlib.suppress(psutil.NoSuchProcess):
                    size = process.memory_info().rss
                    self.largest[kind(process)] = max(self.largest[kind(process)], size)

    def _all(self) -> list[tuple[psutil.Process, float]]:
        found = []
        here = psutil.Process()
        for process in [here, *here.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found.append((process, times.user + times.system))
        return found


def kind(process: psutil.Process) -> str:
    """Return the kind of a process: driver, replica, coordinator, other workers, or Ray's daemons."""
    if process.pid == os.getpid():
        return "driver"
    try:
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "gone"
    for word, name in (("Replica", "replicas"), ("Coordinator", "coordinator"), ("ray::", "tasks")):
        if word in command:
            return name
    return "Ray's daemons"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    import ray

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        size = write(Path(folder) / "in", options.rows, options.files)
        with Usage() as usage:
            began = time.monotonic()
            manifest = run(Path(folder), options.replicas, usage)
            seconds = time.monotonic() - began
    ray.shutdown()
    print(json.dumps(result(options, size, usage, manifest, seconds), indent=1))


def write(folder: Path, rows: int, files: int) -> int:
    """Write rows of JSON lines; return their bytes."""
    folder.mkdir()
    size = 0
    for file in range(files):
        numbers = range(file * rows // files, (file + 1) * rows // files)
        lines = "".join(json.dumps({"id": number, "text": TEXT.format(number)}) + "\n" for number in numbers)
        (folder / f"{file:06d}.jsonl").write_text(lines)
        size += len(lines)
    return size


def run(folder: Path, replicas: int, usage: Usage) -> dict[str, Any]:
    from airflow_provider_raybatch.contract import events
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.phases.driver import run as run_job

    document = {
        "source": [str(folder / "in")],
        "prompt": "What industry is this company in: {row.text}",
        "model": "echo",
        "sampling": {"temperature": 0, "max_tokens": 8},
        "engine": "echo",
        "replicas": replicas,
        "num_cpus": 1,
        "destination": str(folder / "out"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "rows"},
            "run_token": "token",
            "submission_id": "raybatch-rows-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None

    def emit(event: events.Event) -> None:
        if isinstance(event, events.Phase):
            usage.begin(event.phase)
        elif isinstance(event, events.Committed):
            usage.begin("after the commit")

    summary = run_job(spec, spec.submission, emit)
    found: dict[str, Any] = json.loads(Path(summary.manifest_uri).read_text())
    return found


def result(
    options: argparse.Namespace, size: int, usage: Usage, manifest: dict[str, Any], seconds: float
) -> dict[str, Any]:
    assert manifest["counts"]["ok"] == options.rows
    rows = options.rows

    def each(used: dict[str, float]) -> dict[str, float]:
        return {name: round(one / rows * 1e6, 1) for name, one in used.items() if one >= 0.05}

    return {
        "rows": rows,
        "files": options.files,
        "replicas": options.replicas,
        "mebibytes": round(size / 2**20, 1),
        "seconds": round(seconds, 1),
        "seconds_by_step": {name: round(one, 1) for name, one in usage.seconds.items()},
        "cpu_microseconds_a_row": round(sum(usage.by_step.values()) / rows * 1e6, 1),
        "by_step": each(usage.by_step),
        "by_process": each(usage.by_kind),
        "stages": manifest["stages"],
        "driver_mebibytes": round(usage.largest["driver"] / 2**20),
    }


if __name__ == "__main__":
    main()
