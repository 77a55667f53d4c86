# SPDX-License-Identifier: Apache-2.0
"""The Batch API under load: pollers, batches of all sizes, a large upload, and Airflow's own API beside it.

A whole Airflow with PostgreSQL and one API server, a Ray with the echo engine, and the state on a local disk,
all on this machine, with the clients: so each figure has the work of all of them in it. Fifty official
clients poll recorded batches once a second each; sixty batches of 1 to 100,000 lines run meanwhile; one
client uploads 1 GB. Before and during that, another one asks Airflow's own API four times a second. It ends
after 120 seconds of load; ``--whole`` waits until all batches are completed, which takes half an hour.

    python benchmarks/batch_api_load.py load --beside OTHER_CHECKOUT > benchmarks/results/batch_api_load.md

The other comparison needs a quiet machine: batches of 100,000 lines beside a user's DAG whose operator
answers the same file, in turns.

    python benchmarks/batch_api_load.py ratio > benchmarks/results/batch_api_ratio.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import httpx
import httpx2
import openai

from airflow_provider_raybatch.batch_api.store.ids import new_batch_id
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord, Started, Usage
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store
from airflow_provider_raybatch.cluster.local.head import RayHead
from airflow_provider_raybatch.contract.arguments.openai_batch import RequestCounts
from tests.integration.end_to_end.rest import Run
from tests.integration.end_to_end.stack import INTERVALS, AirflowStack

CLIENTS, RECORDED, RUN, LARGEST, UPLOAD = 50, 1_000, 60, 100_000, 1_000_000_000
QUIET_SECONDS, SECONDS = 20.0, 120.0
USER, DAG = "admin", "batches_echo"
PAIRS, OTHER_DAG = 3, "by_operator"
ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
AT_ONCE = 2
CPUS = 0.5
MODEL = {"engine": "echo", "keep_warm": 120, "poll_interval": 2, "advanced": {"num_cpus": CPUS}}
SERVED = """\
from airflow_provider_raybatch.batch_api.dags import serve_batches

dags = serve_batches()
"""
BY_OPERATOR = f"""\
from airflow.sdk import DAG

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

with DAG("{OTHER_DAG}", schedule=None, params={{"source": "", "destination": ""}}):
    RayBatchInferenceOperator(
        task_id="answer",
        source="{{{{ params.source }}}}",
        destination="{{{{ params.destination }}}}",
        format="openai_batch",
        output_options={{"destination_format": "openai_batch", "report_samples": 0}},
        **{{**{MODEL!r}, "advanced": {{"num_cpus": {CPUS}, "served_model_name": "echo"}}}},
    )
"""
OVER = ("completed", "failed", "expired", "cancelled")


@dataclass
class Readings:
    """Seconds of each call by its kind."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    async def timed(self, kind: str, call: Any) -> Any:
        """Await a call, and keep how long it took, or that it failed."""
        began = time.perf_counter()
        try:
            result = await call
        except (openai.APIError, httpx.HTTPError) as error:
            self.failed[kind] = self.failed.get(kind, 0) + 1
            print(f"{kind}: {type(error).__name__}", file=sys.stderr, flush=True)
            return None
        self.seconds.setdefault(kind, []).append(time.perf_counter() - began)
        return result

    def row(self, kind: str) -> str:
        """A line of the table."""
        found = sorted(self.seconds.get(kind, [0.0]))
        shown = (found[len(found) // 2], found[min(len(found) - 1, int(len(found) * 0.95))], found[-1])
        times = " | ".join(f"{1000 * seconds:,.0f} ms" for seconds in shown)
        return f"| {kind} | {len(found):,} | {times} | {self.failed.get(kind, 0)} |"


def sizes(number: int) -> list[int]:
    """Numbers of lines: from 1 to a tenth of the largest, each larger by the same factor, and the largest."""
    return [*(round((LARGEST / 10) ** (place / (number - 2))) for place in range(number - 1)), LARGEST]


def lines(size: int, name: int) -> bytes:
    """A batch file; no two requests are equal, so none is saved."""
    text = "Write one sentence about item {} of list {}, and say what it is made of and where it comes from."
    return b"".join(
        json.dumps({
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "model": "echo",
                "messages": [{"role": "user", "content": text.format(number, name)}],
                "max_tokens": 8,
            },
        }).encode()
        + b"\n"
        for number in range(size)
    )


def record(store: BatchStore, number: int) -> list[str]:
    """Keep batches that have ended some time ago; return their ids."""
    made: list[str] = []
    for place in range(number):
        created = time.time() - 86_400 + place
        batch = BatchRecord(
            id=new_batch_id(),
            owner=USER,
            dag_id=DAG,
            model="echo",
            endpoint=ENDPOINT,
            input_file_id="file-0",
            input=[],
            created_at=created,
            expires_at=created + 86_400,
            outputs_expire_after=30 * 86_400,
        )
        counts = RequestCounts(total=100, completed=100)
        store.add_batch(batch)
        store.mark_triggered(batch.id, created)
        store.start(batch.id, Started(at=created + 1, total=100, nonce="n"))
        usage = Usage(input_tokens=4_000, output_tokens=800)
        times = {"decided_at": created + 60, "at": created + 61}
        store.end(batch.id, BatchEnd(decision="completed", nonce="n", counts=counts, usage=usage, **times))
        made.append(batch.id)
    return made


class Load:
    """The clients.

    :param url: of Airflow's API server.
    :param token: of Airflow.
    """

    def __init__(self, url: str, token: str, recorded: Sequence[str]) -> None:
        self._url, self._token, self._recorded = url, token, recorded
        self._draw = random.Random(0)
        self.readings = Readings()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[openai.AsyncOpenAI]:
        """An official client of its own connections."""
        async with openai.AsyncOpenAI(
            base_url=f"{self._url}/raybatch/v1",
            api_key=self._token,
            timeout=120,
            http_client=httpx2.AsyncClient(timeout=120),
        ) as made:
            yield made

    async def poll(self) -> None:
        """Poll recorded batches, one a second, until it is cancelled."""
        async with self.client() as client:
            await asyncio.sleep(self._draw.random())
            while True:
                batch_id = self._draw.choice(self._recorded)
                await self.readings.timed("poll of a recorded batch", client.batches.retrieve(batch_id))
                await asyncio.sleep(1)

    async def ask_airflow(self, kind: str, seconds: float | None = None) -> None:
        """Ask Airflow's own API for DAG runs, four times a second."""
        headers = {"Authorization": f"Bearer {self._token}"}
        path = f"{self._url}/api/v2/dags/{DAG}/dagRuns"
        ends = None if seconds is None else time.monotonic() + seconds
        async with httpx.AsyncClient(headers=headers, timeout=120) as client:
            while ends is None or time.monotonic() < ends:
                await self.readings.timed(kind, client.get(path, params={"limit": 10}))
                await asyncio.sleep(0.25)

    async def run(self, size: int, name: int) -> str:
        """Upload, create and follow a batch; return how it ended."""
        async with self.client() as client:
            content = lines(size, name)
            upload = client.files.create(file=("in.jsonl", content), purpose="batch")
            file = await self.readings.timed("upload of a batch's file", upload)
            create = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
            batch = await self.readings.timed("create", create)
            while batch.status not in OVER:
                await asyncio.sleep(2)
                poll = client.batches.retrieve(batch.id)
                batch = await self.readings.timed("poll of a batch that waits or runs", poll) or batch
            counts = batch.request_counts
            assert (batch.status, counts.total, counts.completed) == ("completed", size, size), batch
            return str(batch.status)

    async def upload(self) -> float:
        """Upload one large file; return its seconds."""
        piece = lines(5_000, 0)
        with tempfile.TemporaryFile() as file:
            while file.tell() < UPLOAD:
                file.write(piece)
            file.seek(0)
            began = time.perf_counter()
            async with self.client() as client:
                made = await client.files.create(file=("large.jsonl", file), purpose="batch", timeout=600)
            assert made.bytes >= UPLOAD
            return time.perf_counter() - began

    async def answered(self, content: bytes) -> str:
        """Have a batch answered; return its id."""
        async with self.client() as client:
            file = await client.files.create(file=("in.jsonl", content), purpose="batch")
            batch = await client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            while batch.status not in OVER:
                await asyncio.sleep(2)
                batch = await client.batches.retrieve(batch.id)
            assert batch.status == "completed", batch
            return str(batch.id)

    async def play(self, batches: int, seconds: float | None) -> str:
        """Some seconds of it, or all; returns a sentence about upload and batches."""
        await self.ask_airflow("Airflow's own API before", QUIET_SECONDS)
        others = [asyncio.create_task(self.poll()) for _ in range(CLIENTS)]
        others.append(asyncio.create_task(self.ask_airflow("Airflow's own API beside")))
        began = time.perf_counter()
        runs = [asyncio.create_task(self.run(size, name)) for name, size in enumerate(sizes(batches))]
        upload = asyncio.create_task(self.upload())
        over, left = await asyncio.wait([upload, *runs], timeout=seconds)
        for one in over:
            one.result()
        took = time.perf_counter() - began
        for other in (*others, *left):
            other.cancel()
        await asyncio.gather(*others, *left, return_exceptions=True)
        completed = (
            f"{len(over - {upload})} of {batches} batches were completed, with an answer for each line"
        )
        rate = (
            f"{upload.result():.0f} s ({UPLOAD / 1e6 / upload.result():.0f} MB/s)" if upload in over else ""
        )
        return f"The upload {f'took {rate}' if rate else 'went on'}. After {took:.0f} s, {completed}."


def pairs(load: Load, stack: AirflowStack, folder: Path) -> list[tuple[float, float]]:
    """Seconds of a batch's task, and of a user's task that answers the same lines, in turns."""
    found: list[tuple[float, float]] = []
    asyncio.run(load.answered(lines(1, 0)))  # both take the engine that is warm then
    for number in range(PAIRS):
        content = lines(LARGEST, 10_000 + number)
        source = folder / f"pair-{number}.jsonl"
        source.write_bytes(content)
        batch = Run(stack.api, DAG, asyncio.run(load.answered(content)))
        other = stack.api.trigger(OTHER_DAG, source=str(source), destination=str(folder / f"pair-{number}"))
        other.wait("success", 600)
        batch.wait("success", 60)
        found.append((_seconds(batch), _seconds(other)))
        print(f"pair {number + 1}: {found[-1]}", file=sys.stderr, flush=True)
    return found


def _seconds(run: Run) -> float:
    """How long the only attempt of a run's task took, by Airflow."""
    path = f"dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/answer"
    task = run.api.call("GET", path)
    assert task["try_number"] == 1, task
    return float(task["duration"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["load", "ratio"])
    parser.add_argument("--batches", type=int, default=RUN, help="that run under load")
    parser.add_argument("--whole", action="store_true", help="until all batches are completed")
    parser.add_argument("--beside", type=Path, help="another checkout, which is measured first")
    parser.add_argument("--table", action="store_true", help="print the table alone")
    given = parser.parse_args()
    seconds = None if given.whole else SECONDS
    if given.beside is not None:
        print(introduction(given.batches, seconds), flush=True)
        for checkout, title in ((given.beside.absolute(), "Before"), (Path(__file__).parents[1], "After")):
            asked = ["git", "-C", checkout, "rev-parse", "--short=8", "HEAD"]
            commit = subprocess.check_output(asked, text=True).strip()
            print(f"\n## {title} (commit {commit})\n", flush=True)
            again = [sys.executable, __file__, "load", "--table", "--batches", str(given.batches)]
            subprocess.run(
                again + ["--whole"] * given.whole,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                cwd=checkout,
                check=True,
            )
        return
    for name in ("httpx", "httpx2", "openai"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="load-", dir="/tmp") as name:
        folder = Path(name)
        dags = folder / "dags"
        dags.mkdir()
        (dags / "served.py").write_text(SERVED)
        (dags / "by_operator.py").write_text(BY_OPERATOR)
        settings = {
            **INTERVALS,
            "RAYBATCH__BATCH_API_ROOT": f"{folder}/root",
            "RAYBATCH__BATCH_API_REQUESTS_PER_MINUTE": "0",  # all clients are one user
            "RAYBATCH__BATCH_API_MODELS": json.dumps({"echo": {**MODEL, "batches_at_once": AT_ONCE}}),
        }
        with (
            RayHead(num_cpus=2, with_token=False, startup_timeout=300) as ray,
            AirflowStack({"tests": dags}, [DAG, OTHER_DAG], settings) as stack,
        ):
            host, _, port = ray.url.removeprefix("http://").partition(":")
            stack.api.connection("ray_default", "ray", host=host, port=int(port))
            stack.api.unpause(DAG)
            with patch.dict(os.environ, stack.environment):
                found = batch_api_settings()
                assert found is not None
                recorded = record(batch_store(found), RECORDED)
            login = {"username": USER, "password": stack.passwords[USER]}
            token = httpx.post(f"{stack.url}/auth/token", json=login, timeout=60).json()["access_token"]
            load = Load(stack.url, token, recorded)
            if given.what == "ratio":
                say_pairs(pairs(load, stack, folder))
            else:
                sentence = asyncio.run(load.play(given.batches, seconds))
                if not given.table:
                    print(introduction(given.batches, seconds) + "\n")
                say(load, sentence)


def say_pairs(found: Sequence[tuple[float, float]]) -> None:
    """Print what a batch costs beside an operator of a user's."""
    print(
        f"""# A batch of the Batch API beside a user's operator

The same {LARGEST:,} lines as a batch of the Batch API, and by `RayBatchInferenceOperator` of a user's DAG:
seconds of the task, by Airflow. The `echo` engine with `num_cpus={CPUS}` is warm; each pair has
lines of its own. PostgreSQL, API server, Ray and the disk are on {machine()}
Made by `python benchmarks/batch_api_load.py ratio`.

| pair | batch | operator | ratio |
| ---: | ---: | ---: | ---: |"""
    )
    for number, (batch, other) in enumerate(found, 1):
        print(f"| {number} | {batch:.1f} s | {other:.1f} s | {batch / other:.2f} |")
    print(f"\nMedian ratio: {statistics.median(batch / other for batch, other in found):.2f}.")


def machine() -> str:
    """One sentence."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("apache-airflow", "ray", "openai", "fastapi"))
    return (
        f"one machine of {os.cpu_count()} cores ({platform.machine()}).\n"
        f"Python {platform.python_version()}, {versions}."
    )


def introduction(batches: int, seconds: float | None) -> str:
    """What was measured."""
    which = "until all are completed" if seconds is None else f"for {seconds:g} s"
    option = " --whole" if seconds is None else ""
    return f"""# The Batch API under load

{CLIENTS} official clients poll {RECORDED:,} recorded batches once a second each; {batches} batches of 1 to
{LARGEST:,} lines are created at once and run, {AT_ONCE} at a time, with the echo engine; one client uploads
{UPLOAD / 1e9:g} GB, {which}. One API server, PostgreSQL, Ray, all clients and the state are on {machine()}
It is busy throughout. Made by `python benchmarks/batch_api_load.py load{option}`."""


def say(load: Load, sentence: str) -> None:
    """Print the table."""
    print("| call | number | median | p95 | longest | failed |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind in (
        "poll of a recorded batch",
        "poll of a batch that waits or runs",
        "create",
        "upload of a batch's file",
        "Airflow's own API before",
        "Airflow's own API beside",
    ):
        print(load.readings.row(kind))
    print(f"\n{sentence}", flush=True)


if __name__ == "__main__":
    main()
