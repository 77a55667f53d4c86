# SPDX-License-Identifier: Apache-2.0
"""The cost for a triggerer of following 1,000 jobs at once.

Run ``python benchmarks/triggerer.py [JOBS] [SECONDS]`` in an environment that has the provider. A *fake* of
Ray's Jobs API, a small HTTP server in its own process, serves running jobs that write two lines per poll
interval. Another process runs one ``RayJobTrigger`` per job in one event loop, as Airflow does. A second one
follows them in the plain way, for comparison: each job has its own client and TLS context, and each poll
reads the last 1,000 lines of its log. A third one follows none. Each process has the imports of Airflow's
triggerer. Writes ``benchmarks/results/triggerer.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import platform
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

INTERVAL = 10.0
LINES_AT_START = 900
LINES_A_SECOND = 0.2
LINES = [f"{number:>8} a line of a driver's log, {'x' * 90}\n".encode() for number in range(2000)]
BEAT = 0.01
RESULT = Path(__file__).parent / "results/triggerer.md"
ROUNDS = 2
WAYS = {
    "triggers": "`RayJobTrigger`",
    "frozen": "the same after `gc.freeze()`",
    "none": "no job",
    "plain": "a client a job, 1,000 lines a poll",
}


@dataclass(frozen=True)
class Reading:
    """The cost of following.

    :param start_seconds: CPU seconds from the first trigger's start until each has polled once.
    :param cores: CPU seconds of the process per second of the measurement.
    :param peak_mib: peak of the process's resident memory.
    :param lag_ms: longest time for which the loop was blocked, by the clock.
    :param lag_cpu_ms: the same in CPU time of its thread, which other processes don't change.
    :param lag_p99_ms: the 99th percentile, by the clock.
    :param collection_ms: CPU time of the longest garbage collection in the loop's thread.
    :param own_ms: `lag_cpu_ms` without garbage collections.
    :param collections: full collections during the measurement.
    :param objects: objects that the garbage collector tracks before the followers start.
    :param objects_a_job: further tracked objects afterwards, per followed job.
    :param full_ms: CPU time of a forced full collection before the followers start, the best of 5.
    :param full_after_ms: the same after the measurement, while all followers run.
    :param log_kib: KiB of log per job and poll.
    :param polls: polls per second.
    """

    start_seconds: float
    cores: float
    peak_mib: float
    lag_ms: float
    lag_cpu_ms: float
    lag_p99_ms: float
    collection_ms: float
    own_ms: float
    collections: int
    objects: int
    objects_a_job: float
    full_ms: float
    full_after_ms: float
    log_kib: float
    polls: float


# --- the fake API ---


def document(name: str) -> str:
    """Return a running job in Ray's form."""
    return json.dumps({
        "type": "SUBMISSION", "submission_id": name, "job_id": "01000000", "status": "RUNNING",
        "entrypoint": "python main.py", "message": "Job is currently running.", "metadata": {},
        "runtime_env": {}, "start_time": 1, "end_time": None, "driver_node_id": "node",
    })  # fmt: skip


async def serve() -> None:
    """Serve on a free port, which is printed, until the process is ended."""
    began, polls, log_bytes = time.time(), 0, 0

    def answer(target: str) -> bytes:
        nonlocal polls, log_bytes
        url = urlsplit(target)
        if url.path.startswith("/api/jobs/"):
            polls += 1
            return document(url.path.rpartition("/")[2]).encode()
        if url.path == "/api/v0/logs/file":
            end = LINES_AT_START + int((time.time() - began) * LINES_A_SECOND)
            first = max(0, end - int(parse_qs(url.query)["lines"][0]))
            text = b"".join(LINES[first:end])
            log_bytes += len(text)
            return text
        if url.path == "/stats":
            return json.dumps([polls, log_bytes]).encode()
        return json.dumps({"ray_version": "2.60.0", "session_name": "stand-in"}).encode()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = answer(head.split(b" ", 2)[1].decode())
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# --- the followers ---


@dataclass
class Collections:
    """Measures garbage collections of this thread, in seconds of its CPU time.

    :param spent: sum of all so far.
    :param longest: longest one.
    :param full: number of full collections.
    """

    spent: float = 0.0
    longest: float = 0.0
    full: int = 0
    _began: float = field(default=0.0, repr=False)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Handle an event of `gc.callbacks`."""
        if phase == "start":
            self._began = time.thread_time()
            return
        took = time.thread_time() - self._began
        self.spent += took
        self.longest = max(self.longest, took)
        self.full += info["generation"] == 2


def full_collection() -> float:
    """Return the CPU seconds of a full collection, the best of five."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        gc.collect()
        found.append(time.thread_time() - began)
    return min(found)


async def follow(way: str, url: str, jobs: int, seconds: float) -> Reading:
    """Follow `jobs` jobs in this loop, and measure for `seconds` once each has polled."""
    import airflow.jobs.triggerer_job_runner  # noqa: F401 - what else is in memory in a triggerer
    import httpx

    from airflow_provider_raybatch.triggers import ray_job  # noqa: F401

    jobs = 0 if way == "none" else jobs
    full, objects = full_collection(), len(gc.get_objects())
    if way == "frozen":
        gc.freeze()
    cpu = time.process_time()
    followers = [asyncio.create_task(FOLLOWERS[way](url, f"job-{number}")) for number in range(jobs)]
    async with httpx.AsyncClient(timeout=120) as client:

        async def stats() -> tuple[int, int]:
            polls, log_bytes = (await client.get(f"{url}/stats")).json()
            return polls, log_bytes

        start_seconds = 0.0
        # The first poll reads the log so far, which is not measured.
        while (polls := (await stats())[0]) < 2 * jobs:
            if polls >= jobs and not start_seconds:
                start_seconds = time.process_time() - cpu
            await asyncio.sleep(0.2)
        polls, log_bytes = await stats()
        collections = Collections()
        gc.callbacks.append(collections)
        began, cpu = time.perf_counter(), time.process_time()
        lags = await beat(seconds, collections)
        gc.callbacks.remove(collections)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        polls_after, log_bytes_after = await stats()
    full_after = full_collection()
    gc.unfreeze()
    objects_after = len(gc.get_objects())
    failed = [task.exception() for task in followers if task.done()]
    assert not failed, failed[0]
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)
    by_clock = sorted(lag for lag, _, _ in lags)
    return Reading(
        start_seconds=start_seconds,
        cores=used / took,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        lag_ms=1000 * by_clock[-1],
        lag_cpu_ms=1000 * max(lag for _, lag, _ in lags),
        lag_p99_ms=1000 * by_clock[int(0.99 * len(by_clock))],
        collection_ms=1000 * collections.longest,
        own_ms=1000 * max(lag - collecting for _, lag, collecting in lags),
        collections=collections.full,
        objects=objects,
        objects_a_job=(objects_after - objects) / jobs if jobs else 0.0,
        full_ms=1000 * full,
        full_after_ms=1000 * full_after,
        log_kib=(log_bytes_after - log_bytes) / 1024 / max(1, polls_after - polls),
        polls=(polls_after - polls) / took,
    )


async def beat(seconds: float, collections: Collections) -> list[tuple[float, float, float]]:
    """Measure how late the loop returns each time: by the clock, in CPU time, and in garbage collections."""
    lags = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        clock, cpu, spent = time.perf_counter(), time.thread_time(), collections.spent
        await asyncio.sleep(BEAT)
        lags.append((
            time.perf_counter() - clock - BEAT,
            time.thread_time() - cpu,
            collections.spent - spent,
        ))
    return lags


async def by_trigger(url: str, name: str) -> None:
    """Follow as Airflow's triggerer does."""
    from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

    trigger = RayJobTrigger(
        ray_conn_id="ray_default",
        submission_id=name,
        session_name="stand-in",
        poll_interval=INTERVAL,
        deferred_at=0.0,  # all start at once, as after a triggerer's restart
    )
    async for _ in trigger.run():
        pass


async def plainly(url: str, name: str) -> None:
    """Follow with a client and a TLS context per job, and 1,000 lines per poll."""
    from airflow_provider_raybatch.cluster.follow.outcome import FollowState
    from airflow_provider_raybatch.cluster.follow.poll import Followed, poll_once
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.jobs_api.models import TAIL_LINES

    ssl.create_default_context()
    state = FollowState(session_name="stand-in")
    async with RayJobsClient(ClusterAddress(url)) as client:
        while True:
            state = replace((await poll_once(client, Followed(name), state)).state, expected_lines=TAIL_LINES)
            await asyncio.sleep(INTERVAL)


FOLLOWERS = {"triggers": by_trigger, "frozen": by_trigger, "plain": plainly}


# --- the measurement ---


def measure(way: str, jobs: int, seconds: float) -> Reading:
    """Run one fake API and one process of followers."""
    itself = [sys.executable, __file__]
    with (
        subprocess.Popen([*itself, "--serve"], stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as home,
    ):
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            connection = json.dumps({"conn_type": "ray", "host": url})
            done = subprocess.run(
                [*itself, "--follow", way, url, str(jobs), str(seconds)],
                env={**os.environ, "AIRFLOW_HOME": home, "AIRFLOW_CONN_RAY_DEFAULT": connection},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            server.kill()
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def best(way: str, jobs: int, seconds: float) -> Reading:
    """Return the round with the smallest maximum lag in CPU time, if possible one with a full collection.

    A round without a full collection is not typical.
    """
    readings = [measure(way, jobs, seconds) for _ in range(ROUNDS)]
    collecting = [reading for reading in readings if reading.collections]
    return min(collecting or readings, key=lambda reading: reading.lag_cpu_ms)


def shown(jobs: int, seconds: float, readings: dict[str, Reading], loads: tuple[float, float]) -> str:
    """Return the text of the result."""
    rows = {
        "CPU, cores": "cores",
        "peak memory, MiB": "peak_mib",
        "longest loop lag, ms": "lag_ms",
        "longest loop lag in CPU time, ms": "lag_cpu_ms",
        "the same without garbage collections, ms": "own_ms",
        "longest garbage collection, CPU ms": "collection_ms",
        "full collections in the measurement": "collections",
        "objects in memory before the first job": "objects",
        "objects a job": "objects_a_job",
        "a full collection before the first job, CPU ms": "full_ms",
        "a full collection after the measurement, CPU ms": "full_after_ms",
        "99 % of loop lags, ms": "lag_p99_ms",
        "log a job and poll, KiB": "log_kib",
        "CPU until all polled once, s": "start_seconds",
        "polls a second": "polls",
    }
    table = [
        f"| | {' | '.join(WAYS[way] for way in readings)} |",
        f"| --- |{' --- |' * len(readings)}",
    ]
    for title, name in rows.items():
        figures = [getattr(reading, name) for reading in readings.values()]
        form = ",d" if isinstance(figures[0], int) else ",.2f"
        table.append(f"| {title} | {' | '.join(format(figure, form) for figure in figures)} |")
    return "\n".join([
        "# Following many jobs in one triggerer",
        "",
        *table,
        "",
        f"{jobs:,} running jobs, a poll each {INTERVAL:g} s, {seconds:g} s of measurement after two polls "
        "each. The cluster is a fake of Ray's Jobs API, not Ray: an HTTP server in its own process "
        f"whose jobs write {LINES_A_SECOND * INTERVAL:g} lines a poll. The triggers also write the lines "
        "to a log. A lag by the clock includes the time in which other processes had the CPU; in CPU time "
        f"it is the loop's own work. All variants are in one run, {ROUNDS} rounds each; shown is the "
        "round with the shortest lag in CPU time among those with a full garbage collection.",
        "",
        "The longest lag is a full garbage collection: Python visits every object of the process, in "
        "the thread that happens to create the next one. Most objects are Airflow's own, which exist "
        "without a job: see the third column. The provider freezes nothing, because the process is "
        "Airflow's; the second column shows what `gc.freeze()` after the imports would change.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {loads[0]:.1f} before and "
        f"{loads[1]:.1f} after.",
        "",
        "Made by `python benchmarks/triggerer.py`.",
        "",
    ])


def main(arguments: list[str]) -> None:
    """See the module docstring."""
    if arguments[:1] == ["--serve"]:
        asyncio.run(serve())
    elif arguments[:1] == ["--follow"]:
        way, url, number, length = arguments[1:]
        reading = asyncio.run(follow(way, url, int(number), float(length)))
        print(json.dumps(asdict(reading)))
    else:
        jobs = int(arguments[0]) if arguments else 1000
        seconds = float(arguments[1]) if len(arguments) > 1 else 60.0
        before = os.getloadavg()[0]
        readings = {way: best(way, jobs, seconds) for way in WAYS}
        text = shown(jobs, seconds, readings, (before, os.getloadavg()[0]))
        RESULT.write_text(text)
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
