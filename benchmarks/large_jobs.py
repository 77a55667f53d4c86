# SPDX-License-Identifier: Apache-2.0
"""A job of millions of distinct rows with kills, and the next night, which has all answers in its `reuse`.

The real job runs with the echo engine on a Ray of this machine, each attempt in a process of its own. Driver
and coordinator are killed in turn with SIGKILL, whenever another share of the rows is done. Memory is what a
process has for itself (its resident memory without what it shares), at the largest of samples of half a
second. The dataset is read at the end: each id is there once.

    python benchmarks/large_jobs.py --rows 20000000 --kills 4 > benchmarks/results/large_jobs.md
    python benchmarks/large_jobs.py --rows 20000000 --replicas 8 --cpus 12
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TEXT = "The company of row {} makes harbors, lanterns, orchards, copper, meadows and quartz for a living."
LOOK = 0.5
FILES = 20
HEAD = """# Jobs of millions of rows

`python benchmarks/large_jobs.py --rows {rows} --kills {kills} --replicas {replicas} --cpus {cpus}`
on a machine of {cores} cores, Python {python}, Ray {ray}, `echo` engine, greedy, rows of 129 bytes of
JSON lines in {files} files, all distinct. Memory is that of the largest process of its kind, without
what processes share. CPU has all processes of the job, Ray's daemons among them.

| | seconds | rows a second | CPU, us a row | driver, MB | coordinator | replica | tasks | attempts | rows |
|---|---|---|---|---|---|---|---|---|---|"""
KINDS = ("driver", "coordinator", "replica", "tasks")


@dataclass
class Usage:
    """CPU seconds of all processes, and by kind the most bytes that one had for itself."""

    cpu: float = 0.0
    largest: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[int, float] = field(default_factory=dict)

    def sample(self) -> None:
        """Look at all processes below this one."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times, memory, kind = process.cpu_times(), process.memory_info(), _kind(process)
                used = times.user + times.system
                self.cpu += used - self.seen.get(process.pid, 0.0)
                self.seen[process.pid] = used
                self.largest[kind] = max(self.largest[kind], memory.rss - memory.shared)

    def begin(self) -> None:
        """Count anew."""
        self.sample()
        self.cpu, self.largest = 0.0, defaultdict(int)


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    words = {"--attempt": "driver", "Replica": "replica", "Coordinator(": "coordinator", "ray::": "tasks"}
    return next((kind for word, kind in words.items() if word in command), "Ray's daemons")


class Task:
    """A task with its input and its destination."""

    def __init__(self, folder: Path, rows: int, replicas: int, address: str) -> None:
        self.folder, self.rows, self.replicas, self.address = folder, rows, replicas, address
        self.attempts = self.nights = 0
        (folder / "in").mkdir()
        for file in range(FILES):
            numbers = range(file * rows // FILES, (file + 1) * rows // FILES)
            with (folder / "in" / f"{file:06d}.jsonl").open("w") as written:
                written.writelines(
                    json.dumps({"id": number, "text": TEXT.format(number)}) + "\n" for number in numbers
                )

    def night(self, kills: int) -> dict[str, Any]:
        """Run it until it has committed; return its manifest."""
        self.nights += 1
        limits = [self.rows * (number + 1) // (kills + 1) for number in range(kills)]
        while True:
            found = self._attempt(limits.pop(0) if limits else self.rows + 1)
            if found is not None:
                return found

    def _attempt(self, limit: int | None) -> dict[str, Any] | None:
        """Run one job, and kill it when so many rows are done; return the manifest if it commits."""
        self.attempts += 1
        command = [sys.executable, __file__, "--attempt", str(self.folder), self.address]
        command += map(str, (self.nights, self.attempts, self.replicas))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            for line in job.stdout:
                if not line.startswith("{"):
                    continue  # of Ray
                event = json.loads(line)
                if limit is not None and (event.get("kept") or 0) >= limit:
                    self._kill(job)
                    limit = None
                if event["event"] == "committed":
                    found: dict[str, Any] = json.loads(Path(event["summary"]["manifest_uri"]).read_text())
                    return found
        assert limit is None, "an attempt ended that was not killed"
        return None

    def _kill(self, job: subprocess.Popen[str]) -> None:
        coordinators = [
            one for one in psutil.Process().children(recursive=True) if _kind(one) == "coordinator"
        ]
        if self.attempts % 2 and coordinators:
            coordinators[0].kill()
        else:
            job.send_signal(signal.SIGKILL)

    def check(self, manifest: dict[str, Any]) -> None:
        """Raise ``AssertionError`` unless the dataset has each row once."""
        assert manifest["counts"]["ok"] == self.rows, manifest["counts"]
        ids = ids_of(Path(manifest["uri"].removeprefix("file://")))
        assert len(ids) == self.rows == pc.count_distinct(ids).as_py()


def ids_of(folder: Path) -> pa.ChunkedArray:
    """The ids of a dataset."""
    files = sorted(folder.glob("*.parquet"))
    return pa.chunked_array([
        chunk for file in files for chunk in pq.read_table(file, columns=["id"])["id"].chunks
    ])


def attempt(folder: Path, address: str, night: int, number: int, replicas: int) -> None:
    """Run the job of one submission, and print its events."""
    import ray

    from airflow_provider_raybatch.contract import events
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.phases.driver import run

    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    ray.init(address=address, log_to_driver=False, logging_level="error")
    document = {
        "source": [str(folder / "in")],
        "prompt": "What industry is this company in: {row.text}",
        "model": "echo",
        "sampling": {"temperature": 0, "max_tokens": 8},
        "engine": "echo",
        "replicas": replicas,
        "num_cpus": 1,
        "destination": str(folder / f"night-{night}"),
        "reuse": str(folder / "store"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": f"night-{night}", "task_id": "rows"},
            "run_token": f"token-{night}",
            "submission_id": f"raybatch-rows-{number}",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None

    def emit(event: events.Event) -> None:
        print(event.model_dump_json(), flush=True)

    run(spec, spec.submission, emit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--cpus", type=int, default=2, help="of Ray")
    options = parser.parse_args()
    import ray

    print(
        HEAD.format(
            rows=" ".join(map(str, options.rows)),
            kills=options.kills,
            replicas=options.replicas,
            cpus=options.cpus,
            cores=os.cpu_count(),
            python=sys.version.split()[0],
            ray=ray.__version__,
            files=FILES,
        )
    )
    for rows in options.rows:
        context = ray.init(
            address="local",
            num_cpus=options.cpus,
            _node_ip_address="127.0.0.1",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
        )
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            task = Task(Path(folder), rows, options.replicas, context.address_info["gcs_address"])
            _measure(task, options.kills)
        ray.shutdown()


def _measure(task: Task, kills: int) -> None:
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            usage.sample()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for title, killed in (
        (f"{task.rows:,} rows, {kills} kills", kills),
        (f"{task.rows:,} rows, all known", 0),
    ):
        usage.begin()
        before = task.attempts
        began = time.monotonic()
        manifest = task.night(killed)
        seconds = time.monotonic() - began
        usage.sample()
        sizes = [f"{usage.largest[kind] / 1e6:,.0f}" for kind in KINDS]
        figures = [
            f"{seconds:,.0f}",
            f"{task.rows / seconds:,.0f}",
            f"{usage.cpu / task.rows * 1e6:.1f}",
            *sizes,
        ]
        assert killed or manifest["counts"]["reused"] == task.rows
        figures += [str(task.attempts - before), f"{manifest['counts']['ok']:,}"]
        print(f"| {title} | {' | '.join(figures)} |", flush=True)
        task.check(manifest)
    over.set()
    watcher.join()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attempt"]:
        attempt(Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main()
