# SPDX-License-Identifier: Apache-2.0
"""What a resume costs before the first missing row reaches an engine, with all rows but a few done already.

Ours is what a job does: look at the source, read the ledger, look for answers (equal requests are asked once,
which is the default; with and without a response store), and list the work. Ray Data's checkpoint filters the
same input by the ids of finished rows. All run on the same Parquet files, each in a fresh process; memory is
what all processes below it hold together at their peak, less what they held before they looked at the input.

    python benchmarks/resume.py [--before CHECKOUT] [--ray] [ROWS ...] > benchmarks/results/resume.md

`--before` adds the same resume with the package of another checkout, `--ray` Ray Data's checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = (100_000, 1_000_000, 10_000_000)
LARGEST_WORN = 1_000_000
"""Larger inputs are measured whole, on a disk, and without the package of another checkout."""
ROWS_PER_FILE = 250_000
ROWS_PER_PART = 4096
"""As the job plans them for ten million rows."""
RAY_ROWS_PER_CHECKPOINT = 100_000
SUBMISSIONS = 20
STORED = 200_000
HEAD = """# Resume with nearly all rows done

Seconds from the first look at the input until the missing rows can be asked, or are, the files of the ledger
that were opened, and the memory above what was held before. Ours: source, ledger, answers that are there
already, list of work, with `deduplicate` on. `reuse`: a response store with 200,000 other responses as well.
Ray Data: until the map that stands for the engine has the row. Ratios are to the first line of each block.

- *whole*: one earlier submission, one row is missing.
- *worn*: 20 earlier submissions; of ten parts, one has a failed row and one lacks a row; every hundredth row
  asks what the row before it asks.
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


def prepare(place: Path, rows: int, worn: bool, destination: str, endpoint: str) -> None:
    """An input of `rows` rows, and what both systems remember of nearly all of them."""
    (place / INPUT).mkdir(parents=True)
    (place / CHECKPOINT).mkdir()
    for first in range(0, rows, ROWS_PER_FILE):
        ids = np.arange(first, min(first + ROWS_PER_FILE, rows))
        asks = np.where(ids % 100 == 1, ids - 1, ids) if worn else ids
        table = pa.table({"id": ids, "text": [f"row {number}" for number in asks]})
        pq.write_table(table, place / INPUT / f"{first:010d}.parquet")
    for first in range(0, rows, RAY_ROWS_PER_CHECKPOINT):
        ids = np.arange(first, min(first + RAY_ROWS_PER_CHECKPOINT, rows - 1))
        pq.write_table(pa.table({"id": ids}), place / CHECKPOINT / f"{first:010d}.parquet")
    attempt = Attempt(place, destination, endpoint, submission=0)
    attempt.look()
    _write_parts(attempt, rows, worn)
    _fill_store(place)


def _write_parts(attempt: Attempt, rows: int, worn: bool) -> None:
    from airflow_provider_raybatch.job.key_array import KEY
    from airflow_provider_raybatch.job.ledger import parts

    kind = parts.output_type(False)
    for number, first in enumerate(range(0, rows, ROWS_PER_PART)):
        ordinals = np.arange(first, min(first + ROWS_PER_PART, rows - 1))
        if worn and number % 10 == 1:
            ordinals = np.delete(ordinals, len(ordinals) // 2)
        size = len(ordinals)
        if not size:
            continue
        ok = np.full(size, True)
        ok[size // 2] = not (worn and number % 10 == 2)
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
        submission = number % SUBMISSIONS if worn else 0
        driver = f"{attempt.run_folder}/raybatch-benchmark-{submission}~00000000"
        columns = pa.table({"id": ordinals, "text": text})
        parts.write_arrays(attempt.job.folder, f"{driver}/{number:08d}", columns, arrays)


def _fill_store(place: Path) -> None:
    from airflow_provider_raybatch.job.key_array import KEY
    from airflow_provider_raybatch.job.ledger.parts import output_type
    from airflow_provider_raybatch.job.response_store import ResponseStore
    from airflow_provider_raybatch.job.storage.folder import LocalFolder

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
    ResponseStore(LocalFolder(str(place / STORE)), print).add("raybatch-other-0", [table])


class Attempt:
    """One attempt of the task, up to its list of work.

    :param destination: its folder; in S3 the one that `endpoint` serves.
    """

    def __init__(self, place: Path, destination: str, endpoint: str, submission: int) -> None:
        from airflow_provider_raybatch.contract.base import parse
        from airflow_provider_raybatch.contract.manifest import Digests
        from airflow_provider_raybatch.contract.secrets import AwsCredentials
        from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
        from airflow_provider_raybatch.job.keys import Keyer
        from airflow_provider_raybatch.job.ledger import parts
        from airflow_provider_raybatch.job.preflight.input_check import look_at_source
        from airflow_provider_raybatch.job.ready import question
        from airflow_provider_raybatch.job.storage.folder import folder
        from airflow_provider_raybatch.job.work import Job

        document = {
            "source": {"paths": [str(place / INPUT)]},
            "prompt": {"kind": "prompt_column", "column": "text"},
            "model": {"name": "echo"},
            "engine": {"kind": "echo"},
            "sampling": {"temperature": 0},
            "destination": {"uri": destination},
            "submission": {
                "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "resume"},
                "run_token": "token",
                "submission_id": f"raybatch-benchmark-{submission}",
            },
        }
        spec: Any = parse(BatchInferenceSpec, json.dumps(document))
        credentials = None
        if endpoint:
            credentials = AwsCredentials(
                aws_access_key_id="key", aws_secret_access_key="secret", endpoint_url=endpoint
            )
        self.source = look_at_source(spec, None)
        keyer = Keyer(spec, {}, Digests())
        self.run_folder = parts.run_folder(
            spec.submission, question(spec, spec.submission, keyer), self.source.listing.digest
        )
        driver = parts.driver_folder(self.run_folder, spec.submission.submission_id)
        self.job = Job(spec, self.source.listing, folder(destination, credentials), driver, keyer)

    def look(self, store: Path | None = None) -> int:
        """What a job does before it starts an engine. Returns the number of rows that are left."""
        from airflow_provider_raybatch.job.ledger.ledger import look_back
        from airflow_provider_raybatch.job.response_store import ResponseStore
        from airflow_provider_raybatch.job.resume import work
        from airflow_provider_raybatch.job.savings.keying import in_sequence
        from airflow_provider_raybatch.job.savings.reuse import StoredResponses
        from airflow_provider_raybatch.job.savings.savings import find_savings
        from airflow_provider_raybatch.job.storage.folder import LocalFolder

        ledger = look_back(self.job.folder, self.run_folder, self.source.rows)
        stored = None if store is None else StoredResponses(ResponseStore(LocalFolder(str(store)), print))
        settled = ledger.good.copy()
        find: Any = find_savings
        older = "earlier" not in inspect.signature(find).parameters
        known: tuple[Any, ...] = (settled,) if older else (ledger, settled)
        savings = find(self.job, self.source, *known, stored, in_sequence, lambda phase: None)
        savings.adopt(self.job, self.source)
        settled |= savings.rows
        items = work(self.source, ROWS_PER_PART, settled, savings.repetitions)
        return sum(len(item.positions) for item in items)


def _import() -> None:
    import airflow_provider_raybatch.job.run  # noqa: F401


def ours(place: Path, destination: str, endpoint: str, reuse: bool) -> dict[str, float]:
    """Resume in this process."""
    from airflow_provider_raybatch.job.storage.folder import LocalFolder, S3Folder

    opened: list[str] = []
    for kind in (LocalFolder, S3Folder):

        def counted(self: Any, path: str, own: Any = kind.open) -> Any:
            opened.append(path)
            return own(self, path)

        kind.open = counted  # type: ignore[method-assign]
    # Imports, connections and threads of libraries are no part of a resume.
    Attempt(place, destination, endpoint, submission=SUBMISSIONS)
    _import()
    opened.clear()
    peak, began = Peak(), time.perf_counter()
    left = Attempt(place, destination, endpoint, submission=SUBMISSIONS).look(
        place / STORE if reuse else None
    )
    seconds = time.perf_counter() - began
    if not left:
        raise SystemExit("no row is left")
    return {
        "seconds": seconds,
        "mib": peak.mib,
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


def measured(package: Path, *arguments: str) -> dict[str, float]:
    """One measurement in a process of its own.

    :param package: the checkout whose package it takes.
    """
    done = subprocess.run(
        [sys.executable, __file__, "--measure", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        },
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextlib.contextmanager
def s3() -> Iterator[tuple[str, str]]:
    """A destination in S3 (moto's server in this process), and the server's address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    import boto3

    boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    ).create_bucket(Bucket="benchmark")
    yield "s3://benchmark/out", f"http://{host}:{port}"
    server.stop()


def block(rows: int, worn: bool, before: Path | None, in_s3: bool = False, ray: bool = False) -> None:
    """Print the lines of one state of things."""
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        destination, endpoint = stack.enter_context(s3()) if in_s3 else (str(place / DESTINATION), "")
        prepare(place, rows, worn, destination, endpoint)
        arguments = [str(place), destination, endpoint]
        results = {
            "resume": measured(here, *arguments, "ours"),
            "resume, `reuse`": measured(here, *arguments, "reuse"),
        }
        if before is not None:
            results["resume before"] = measured(before, *arguments, "ours")
            results["resume before, `reuse`"] = measured(before, *arguments, "reuse")
        if ray:
            results["Ray Data checkpoint"] = measured(here, *arguments, "ray")
    least = next(iter(results.values()))["seconds"]
    state = f"{rows:,} | {'worn' if worn else 'whole'}, {'S3' if in_s3 else 'disk'}"
    for name, found in results.items():
        opened = f"{found['opened']:,.0f}" if "opened" in found else ""
        ratio = found["seconds"] / least
        figures = f"{found['seconds']:.2f} | {ratio:.1f} | {opened} | {found['mib']:,.0f}"
        print(f"| {state} | {name} | {figures} |", flush=True)


def main(sizes: list[int], before: Path | None, ray: bool) -> None:
    """Print the table."""
    print(HEAD)
    print(
        f"Ray {importlib.metadata.version('ray')}, pyarrow {pa.__version__}; local disk, 2 CPU cores, 24 GiB,"
    )
    print("no GPU; S3 is moto's server on the same cores. Made by `python benchmarks/resume.py`.\n")
    print("| rows | state | system | seconds | ratio | opened | MiB |")
    print("|---|---|---|---|---|---|---|")
    for rows in sizes:
        block(rows, False, before if rows <= LARGEST_WORN else None, ray=ray)
        if rows <= LARGEST_WORN:
            block(rows, True, before)
            block(rows, True, before, in_s3=True)


def _measure(place: str, destination: str, endpoint: str, system: str) -> dict[str, float]:
    if system == "ray":
        return ray_data(Path(place))
    return ours(Path(place), destination, endpoint, system == "reuse")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--measure"]:
        print(json.dumps(_measure(*given[1:])))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("rows", type=int, nargs="*", default=list(ROWS))
        parser.add_argument("--before", type=Path)
        parser.add_argument("--ray", action="store_true")
        options = parser.parse_args()
        main(options.rows, options.before and options.before.resolve(), options.ray)
