# SPDX-License-Identifier: Apache-2.0
"""What a resume costs before the first missing row reaches an engine.

Ours is what a job does: look at the source, read the ledger, look for answers (equal requests are asked once,
which is the default; with and without a response store), and list the work. Ray Data's checkpoint filters the
same input by the ids of finished rows. All run on the same Parquet files, each time in a fresh process;
memory is what all processes below it hold together at their peak, less what they held before they looked at
the input.

    python benchmarks/resume.py [--ray] [ROWS ...] > benchmarks/results/resume.md

`--ray` adds Ray Data's checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = (1_000_000, 10_000_000)
LARGEST_IN_S3 = 1_000_000
"""Larger inputs are measured on a disk, and in the two states that open most and fewest files."""
ROWS_PER_FILE = 250_000
ROWS_PER_PART = 4096
"""As the job plans them for ten million rows."""
RAY_ROWS_PER_CHECKPOINT = 100_000
SUBMISSIONS = 20
STORED = 200_000
ROUNDS = 3
LATENCY = 0.04
"""Seconds that S3 takes to answer a request, about."""
STATES = ("whole", "worn", "frayed", "stopped")
HEAD = f"""# Resume

Seconds from the first look at the input until the missing rows can be asked: source, ledger, answers that are
there already, list of work, with `deduplicate` on. `reuse`: a response store with {STORED:,} other responses
as well. CPU: of the driver, all threads. Opened: files of the ledger that were read. MiB: above what was held
before. The best of {ROUNDS} rounds, each in a fresh process. Rows that are left are keyed in this process
where there is a response store; a job spreads that over the cluster.

- *whole*: one earlier submission, one row is missing.
- *worn*: {SUBMISSIONS} earlier submissions; of ten parts, one has a failed row and one lacks a row; every
  hundredth row asks what the row before it asks.
- *frayed*: as worn, and every other part has a failed row as well, so no part is told by its name alone.
- *stopped*: as worn, and the last quarter of the rows is missing.

In S3, source, destination and store lie in a bucket of moto's server, a Python process on the same cores,
which takes longer over a request than the driver does. So requests are counted, and the last column is the
same with {LATENCY * 1000:.0f} ms before each answer, about what S3 takes.
"""
INPUT, DESTINATION, CHECKPOINT, STORE = "in", "out", "checkpoint", "store"


class Peak:
    """The most memory that this process and all below it hold together, above what they held at first."""

    def __init__(self) -> None:
        self._least = self._most = self._now()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def mib(self) -> float:
        """So far."""
        return (self._most - self._least) / 2**20

    @staticmethod
    def _now() -> int:
        total, me = 0, psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            time.sleep(0.05)


@dataclass(frozen=True)
class Place:
    """Where a state of things lies.

    :param root: a local folder, or a bucket behind `endpoint`.
    :param local: a local folder in both cases.
    """

    root: str
    local: Path
    endpoint: str = ""

    @property
    def credentials(self) -> Any:
        """For the bucket."""
        from airflow_provider_raybatch.contract.secrets import AwsCredentials

        if not self.endpoint:
            return None
        return AwsCredentials(
            aws_access_key_id="key", aws_secret_access_key="secret", endpoint_url=self.endpoint
        )

    def folder(self, name: str) -> Any:
        """One of its folders."""
        from airflow_provider_raybatch.storage.folder import folder

        return folder(f"{self.root}/{name}", self.credentials)


def prepare(place: Place, rows: int, state: str) -> None:
    """An input of `rows` rows, and what both systems remember of nearly all of them."""
    (place.local / INPUT).mkdir(parents=True)
    (place.local / CHECKPOINT).mkdir()
    for first in range(0, rows, ROWS_PER_FILE):
        ids = np.arange(first, min(first + ROWS_PER_FILE, rows))
        asks = ids if state == "whole" else np.where(ids % 100 == 1, ids - 1, ids)
        table = pa.table({"id": ids, "text": [f"row {number}" for number in asks]})
        file = place.local / INPUT / f"{first:010d}.parquet"
        pq.write_table(table, file)
        if place.endpoint:
            place.folder(INPUT).write(file.name, file.read_bytes())
    for first in range(0, rows, RAY_ROWS_PER_CHECKPOINT):
        ids = np.arange(first, min(first + RAY_ROWS_PER_CHECKPOINT, rows - 1))
        pq.write_table(pa.table({"id": ids}), place.local / CHECKPOINT / f"{first:010d}.parquet")
    attempt = Attempt(place, submission=0)
    _write_search(attempt, rows, state)
    _write_parts(attempt, rows, state)
    _fill_store(place)


def _write_search(attempt: Attempt, rows: int, state: str) -> None:
    """Which rows repeat others, as the first attempt writes it once it has keyed all rows."""
    from airflow_provider_raybatch.job.request.keys import as_array
    from airflow_provider_raybatch.job.reuse.duplicates import Repeats, Search
    from airflow_provider_raybatch.job.row import Request

    found = np.arange(1, rows, 100) if state != "whole" else np.empty(0, np.int64)
    keys = as_array([attempt.job.keyer.key(Request(prompt=f"row {ordinal - 1}")) for ordinal in found])
    nothing: Any = np.empty(0, np.int64)
    repeats = Repeats(found, found - 1, keys, nothing, nothing)
    Search(repeats, rows, frozenset()).write(attempt.job.folder, attempt.job.part_folder)


def _write_parts(attempt: Attempt, rows: int, state: str) -> None:
    from airflow_provider_raybatch.job.parts import part as parts
    from airflow_provider_raybatch.job.request.key_array import KEY
    from airflow_provider_raybatch.job.tasks.generate import output_type

    kind = output_type(False)
    stop = rows * 3 // 4 if state == "stopped" else rows - 1
    for number, first in enumerate(range(0, stop, ROWS_PER_PART)):
        ordinals = np.arange(first, min(first + ROWS_PER_PART, stop))
        if state != "whole" and number % 10 == 1:
            ordinals = np.delete(ordinals, len(ordinals) // 2)
        size = len(ordinals)
        ok = np.full(size, True)
        failed = state == "frayed" or (state != "whole" and number % 10 == 2)
        ok[size // 2] = not failed
        text = np.char.add("row ", ordinals.astype(str))
        output = {
            "response": text,
            "finish_reason": ["stop"] * size,
            "input_tokens": np.full(size, 2),
            "cached_tokens": np.zeros(size, np.int64),
            "output_tokens": np.full(size, 2),
        }
        arrays = {
            "ordinal": pa.array(ordinals, pa.uint64()),
            "ok": pa.array(ok),
            "key": pa.array([int(ordinal).to_bytes(16, "big") for ordinal in ordinals], KEY),
            "id": pa.nulls(size, pa.string()),
            "origin": pa.array(["generated"] * size),
            "paid_by": pa.nulls(size, pa.string()),
            "failure": pa.nulls(size, parts.FAILURE),
            "output": pa.StructArray.from_arrays(
                [pa.array(output[field.name], field.type) for field in kind], fields=list(kind)
            ),
        }
        submission = 0 if state == "whole" else number % SUBMISSIONS
        driver = f"{attempt.run_folder}/raybatch-benchmark-{submission}~00000000"
        columns = pa.table({"id": ordinals, "text": text})
        parts.write_arrays(attempt.job.folder, f"{driver}/{number:08d}", columns, arrays)


def _fill_store(place: Place) -> None:
    from airflow_provider_raybatch.job.request.key_array import KEY
    from airflow_provider_raybatch.job.reuse.store import ResponseStore
    from airflow_provider_raybatch.job.tasks.generate import output_type

    random = np.random.default_rng(0)
    keys = pa.array([random.bytes(16) for _ in range(STORED)], KEY)
    row = {
        "response": "Manufacture of machinery",
        "finish_reason": "stop",
        "input_tokens": 13,
        "cached_tokens": 0,
        "output_tokens": 4,
        "completions": [],
    }
    table = pa.table({"key": keys, "output": pa.array([row] * STORED, output_type(True))})
    ResponseStore(place.folder(STORE), print).add("raybatch-other-0", [table])


class Attempt:
    """One attempt of the task, up to its list of work."""

    def __init__(self, place: Place, submission: int) -> None:
        from airflow_provider_raybatch.contract import layout
        from airflow_provider_raybatch.contract.base import parse
        from airflow_provider_raybatch.contract.manifest import Digests
        from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
        from airflow_provider_raybatch.job.preflight.input_check import look_at_source
        from airflow_provider_raybatch.job.preflight.ready import request_config_digest
        from airflow_provider_raybatch.job.request.keys import Keyer
        from airflow_provider_raybatch.job.work import Job

        document = {
            "source": [f"{place.root}/{INPUT}/"],
            "prompt_column": "text",
            "model": "echo",
            "engine": "echo",
            "sampling": {"temperature": 0},
            "destination": f"{place.root}/{DESTINATION}",
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "resume"},
                "run_token": "token",
                "submission_id": f"raybatch-benchmark-{submission}",
            },
        }
        spec: Any = parse(BatchInferenceSpec, json.dumps(document))
        self.source = look_at_source(spec, place.credentials)
        keyer = Keyer(spec, {}, Digests())
        self.run_folder = layout.run_folder(
            spec.submission, request_config_digest(spec, spec.submission, keyer), self.source.listing.digest
        )
        driver = layout.driver_folder(self.run_folder, spec.submission.submission_id)
        self.job = Job(
            spec,
            self.source.listing,
            place.folder(DESTINATION),
            driver,
            keyer,
            credentials=place.credentials,
        )

    def look(self, store: Any = None) -> int:
        """What a job does before it starts an engine. Returns the number of rows that are left.

        :param store: the folder of a response store.
        """
        from airflow_provider_raybatch.job.parts.ledger import look_back
        from airflow_provider_raybatch.job.reuse.remaining import work
        from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
        from airflow_provider_raybatch.job.reuse.reuse import plan_reuse
        from airflow_provider_raybatch.job.reuse.row_keys import in_sequence
        from airflow_provider_raybatch.job.reuse.store import ResponseStore

        ledger = look_back(self.job.folder, self.run_folder, self.source.rows)
        stored = None if store is None else StoredResponses(ResponseStore(store, print))
        settled = ledger.good.copy()
        reuse_plan = plan_reuse(
            self.job, self.source, ledger, settled, stored, in_sequence, lambda phase: None
        )
        reuse_plan.write_parts(self.job, self.source)
        settled |= reuse_plan.rows
        items = work(self.source, ROWS_PER_PART, settled, reuse_plan.repetitions)
        return sum(len(item.positions) for item in items)


def _import() -> None:
    import airflow_provider_raybatch.job.driver  # noqa: F401


def ours(place: Place, reuse: bool) -> dict[str, float]:
    """Resume in this process."""
    from airflow_provider_raybatch.storage.folder import LocalFolder, S3Folder

    opened: set[str] = set()

    def counting(own: Any) -> Any:
        def counted(self: Any, path: str, *arguments: Any) -> Any:
            opened.add(path)
            return own(self, path, *arguments)

        return counted

    for kind in (LocalFolder, S3Folder):
        for name in ("open", "read", "read_range"):
            setattr(kind, name, counting(getattr(kind, name)))
    # Imports, connections and threads of libraries are not part of a resume.
    place.folder("none").list()
    _import()
    peak, began, cpu = Peak(), time.perf_counter(), time.process_time()
    left = Attempt(place, submission=SUBMISSIONS).look(place.folder(STORE) if reuse else None)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {
        "seconds": seconds,
        "cpu": used,
        "mib": peak.mib,
        "left": left,
        "opened": sum(path.startswith("_raybatch/") for path in opened),
    }


def ray_data(place: Path) -> dict[str, float]:
    """Run a pipeline with a checkpoint, until its missing row reaches the map that stands for an engine."""
    import ray
    import ray.data
    from ray.data.checkpoint import CheckpointConfig

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    ray.get(ray.remote(lambda: None).remote())
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(place / CHECKPOINT), delete_checkpoint_on_success=False
    )
    reached = place / "reached"
    reached.unlink(missing_ok=True)

    def engine(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(batch["id"]):
            with reached.open("a") as file:
                file.write(f"{time.time()} {len(batch['id'])}\n")
        return batch

    peak, began = Peak(), time.time()
    pipeline = ray.data.read_parquet(str(place / INPUT)).map_batches(engine, batch_size=128)
    pipeline.write_parquet(str(place / "written"), mode="append")
    lines = [line.split() for line in reached.read_text().splitlines()]
    if sum(int(rows) for _, rows in lines) != 1:
        raise SystemExit(f"other than one row reached the engine: {lines}")
    return {"seconds": min(float(at) for at, _ in lines) - began, "mib": peak.mib}


def measured(place: Place, system: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", place.root, str(place.local), place.endpoint, system],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        },
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


class S3:
    """moto's server in this process, with one bucket.

    :param requests: answered so far.
    :param latency: seconds before each answer.
    """

    def __init__(self) -> None:
        self.requests, self.latency = 0, 0.0

    @contextlib.contextmanager
    def serve(self, local: Path) -> Iterator[Place]:
        """A place in it."""
        import boto3
        from moto.server import ThreadedMotoServer
        from werkzeug.serving import WSGIRequestHandler

        def answering(handler: Any, *arguments: Any) -> None:
            self.requests += 1
            time.sleep(self.latency)

        WSGIRequestHandler.log_request = answering  # type: ignore[assignment,method-assign]
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        # moto keeps its buckets beyond a server.
        urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
        place = Place("s3://benchmark", local, f"http://{host}:{port}")
        boto3.client(
            "s3",
            endpoint_url=place.endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        ).create_bucket(Bucket="benchmark")
        yield place
        server.stop()


def best(place: Place, system: str, s3: S3 | None) -> dict[str, float]:
    """The best of several rounds; of requests, those that it took besides the first one, a warm-up."""
    rounds = []
    for _ in range(ROUNDS):
        before = s3.requests if s3 else 0
        found = measured(place, system)
        rounds.append({**found, "requests": s3.requests - before - _WARM_UP} if s3 else found)
    return {name: min(one[name] for one in rounds) for name in rounds[0]}


_WARM_UP = 2
"""Requests of an empty listing: the listing, and the look for a file of that name."""


def block(rows: int, state: str, in_s3: bool = False, ray: bool = False) -> None:
    """Print the lines of one state of things."""
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

    figures = [shown("left", ",.0f"), shown("seconds", ".2f"), shown("cpu", ".2f"), shown("opened", ",.0f")]
    figures += [shown("requests", ",.0f"), shown("slow", ".2f"), shown("mib", ",.0f")]
    print(f"| {title} | {' | '.join(figures)} |", flush=True)


def main(sizes: list[int], ray: bool) -> None:
    """Print the table."""
    print(HEAD)
    print(
        f"Ray {importlib.metadata.version('ray')}, pyarrow {pa.__version__}; local disk, 2 CPU cores, 24 GiB,"
    )
    print("no GPU. Made by `python benchmarks/resume.py`.\n")
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
