# SPDX-License-Identifier: Apache-2.0
"""What a triggerer pays for following 1,000 jobs at once.

Run ``python benchmarks/triggerer.py [JOBS] [SECONDS]`` in an environment that has the provider. A *stand-in*
of Ray's Jobs API, a small HTTP server in a process of its own, serves jobs that run on and write two lines a
poll interval. Another process runs one ``RayJobTrigger`` a job in one event loop, as Airflow does.
A second one follows them the plain way, for comparison: each job with a client and a TLS context of its own,
and the last 1,000 lines of its log at each poll. Writes ``benchmarks/results/triggerer.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

INTERVAL = 10.0
LINES_AT_START = 900
LINES_A_SECOND = 0.2
LINES = [f"{number:>8} a line of a driver's log, {'x' * 90}\n".encode() for number in range(2000)]
BEAT = 0.01
RESULT = Path(__file__).parent / "results/triggerer.md"
WAYS = {"triggers": "`RayJobTrigger`", "plain": "a client a job, 1,000 lines a poll"}


@dataclass(frozen=True)
class Reading:
    """What following cost.

    :param start_seconds: of CPU, from the first trigger's start until each has polled once.
    :param cores: CPU seconds of the process by seconds of the measurement.
    :param peak_mib: peak of its resident memory.
    :param lag_ms: longest time for which the loop came to nothing else: by the clock, then in CPU time of its
        thread, which other processes of the machine don't change; and the 99th percentile by the clock.
    :param log_kib: of log a job and poll.
    :param polls: a second.
    """

    start_seconds: float
    cores: float
    peak_mib: float
    lag_ms: float
    lag_cpu_ms: float
    lag_p99_ms: float
    log_kib: float
    polls: float


# --- the stand-in ---


def document(name: str) -> str:
    """A running job, as Ray tells it."""
    return json.dumps({
        "type": "SUBMISSION", "submission_id": name, "job_id": "01000000", "status": "RUNNING",
        "entrypoint": "python main.py", "message": "Job is currently running.", "metadata": {},
        "runtime_env": {}, "start_time": 1, "end_time": None, "driver_node_id": "node",
    })  # fmt: skip


async def serve() -> None:
    """Answer on a free port, which is printed, until the process is ended."""
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


async def follow(way: str, url: str, jobs: int, seconds: float) -> Reading:
    """Follow `jobs` jobs in this loop, and measure for `seconds` once each has polled."""
    import httpx

    cpu = time.process_time()
    followers = [asyncio.create_task(FOLLOWERS[way](url, f"job-{number}")) for number in range(jobs)]
    async with httpx.AsyncClient(timeout=120) as client:

        async def stats() -> tuple[int, int]:
            polls, log_bytes = (await client.get(f"{url}/stats")).json()
            return polls, log_bytes

        start_seconds = 0.0
        # The first poll reads the log so far, which is not what is measured.
        while (polls := (await stats())[0]) < 2 * jobs:
            if polls >= jobs and not start_seconds:
                start_seconds = time.process_time() - cpu
            await asyncio.sleep(0.2)
        polls, log_bytes = await stats()
        began, cpu = time.perf_counter(), time.process_time()
        lags = await beat(seconds)
        took, used = time.perf_counter() - began, time.process_time() - cpu
        polls_after, log_bytes_after = await stats()
    failed = [task.exception() for task in followers if task.done()]
    assert not failed, failed[0]
    for task in followers:
        task.cancel()
    await asyncio.wait(followers)
    by_clock = sorted(lag for lag, _ in lags)
    return Reading(
        start_seconds=start_seconds,
        cores=used / took,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        lag_ms=1000 * by_clock[-1],
        lag_cpu_ms=1000 * max(lag for _, lag in lags),
        lag_p99_ms=1000 * by_clock[int(0.99 * len(by_clock))],
        log_kib=(log_bytes_after - log_bytes) / 1024 / (polls_after - polls),
        polls=(polls_after - polls) / took,
    )


async def beat(seconds: float) -> list[tuple[float, float]]:
    """How much later than asked for the loop came back each time, by the clock and in CPU time."""
    lags = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        clock, cpu = time.perf_counter(), time.thread_time()
        await asyncio.sleep(BEAT)
        lags.append((time.perf_counter() - clock - BEAT, time.thread_time() - cpu))
    return lags


async def by_trigger(url: str, name: str) -> None:
    """As Airflow's triggerer does."""
    from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

    trigger = RayJobTrigger(
        ray_conn_id="ray_default",
        submission_id=name,
        session_name="stand-in",
        poll_interval=INTERVAL,
        deferred_at=0.0,  # as after a triggerer's restart, when all of them start at once
    )
    async for _ in trigger.run():
        pass


async def plainly(url: str, name: str) -> None:
    """With a client and a TLS context a job, and 1,000 lines a poll."""
    from airflow_provider_raybatch.cluster.address import ClusterAddress
    from airflow_provider_raybatch.cluster.following import FollowState, look
    from airflow_provider_raybatch.cluster.jobs import RayJobsClient
    from airflow_provider_raybatch.cluster.models import TAIL_LINES

    ssl.create_default_context()
    state = FollowState(session_name="stand-in")
    async with RayJobsClient(ClusterAddress(url)) as client:
        while True:
            state = replace((await look(client, name, state)).state, expected_lines=TAIL_LINES)
            await asyncio.sleep(INTERVAL)


FOLLOWERS = {"triggers": by_trigger, "plain": plainly}


# --- the measurement ---


def measure(way: str, jobs: int, seconds: float) -> Reading:
    """One stand-in and one process of followers."""
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


def shown(jobs: int, seconds: float, readings: dict[str, Reading], loads: tuple[float, float]) -> str:
    """The result's text."""
    rows = {
        "CPU, cores": "cores",
        "peak memory, MiB": "peak_mib",
        "longest loop lag, ms": "lag_ms",
        "longest loop lag in CPU time, ms": "lag_cpu_ms",
        "99 % of loop lags, ms": "lag_p99_ms",
        "log a job and poll, KiB": "log_kib",
        "CPU until all polled once, s": "start_seconds",
        "polls a second": "polls",
    }
    table = [
        f"| | {' | '.join(WAYS[way] for way in readings)} | ratio |",
        f"| --- |{' --- |' * (len(readings) + 1)}",
    ]
    for title, name in rows.items():
        ours, plain = (getattr(readings[way], name) for way in WAYS)
        table.append(f"| {title} | {ours:,.2f} | {plain:,.2f} | {ours / plain:.2f} |")
    return "\n".join([
        "# Following many jobs in one triggerer",
        "",
        *table,
        "",
        f"{jobs:,} running jobs, a poll each {INTERVAL:g} s, {seconds:g} s of measurement after two polls "
        "each. The cluster is a stand-in of Ray's Jobs API, not Ray: an HTTP server in a process of its own "
        f"whose jobs write {LINES_A_SECOND * INTERVAL:g} lines a poll. Both ways in one run, one after the "
        "other; the triggers also write the lines into a log. "
        "A lag by the clock includes the time in which other processes had the CPU; in CPU time it is "
        "what the loop itself was busy for.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {loads[0]:.1f} before and "
        f"{loads[1]:.1f} after.",
        "",
        "Made by `python benchmarks/triggerer.py`.",
        "",
    ])


def main(arguments: list[str]) -> None:
    """See the module."""
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
        readings = {way: measure(way, jobs, seconds) for way in WAYS}
        text = shown(jobs, seconds, readings, (before, os.getloadavg()[0]))
        RESULT.write_text(text)
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
