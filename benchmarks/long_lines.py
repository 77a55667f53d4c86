# SPDX-License-Identifier: Apache-2.0
"""What a driver that writes very long lines costs the triggerer that follows it.

Run ``python benchmarks/long_lines.py`` in an environment that has the provider. A fake of Ray's Jobs API, in
its own process, serves one running job whose log is hundreds of megabytes. One ``RayJobTrigger`` follows it
in another process, which has the imports of Airflow's triggerer, for three polls. Measured are the memory
that this takes beyond the imports, and for how long the event loop does not return, in which no other
trigger of the process goes on. Writes ``benchmarks/results/long_lines.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from triggerer import document

POLLS = 3
INTERVAL = 2.0
BEAT = 0.005
RESULT = Path(__file__).parent / "results/long_lines.md"
LONG = b"x" * 299_999
SHAPES = {
    "ordinary": "1,000 lines of 100 B",
    "long": "1,000 lines of 300 kB",
    "bar": "a progress bar of 300 MB, without line ends",
    "waiting": "no job",
}


def log(shape: str, lines: int) -> Iterator[bytes]:
    """Yield the last lines of the log in pieces, as Ray's head does."""
    if shape == "ordinary":
        yield from (b"%0100d\n" % number for number in range(1000))
    elif shape == "long":
        yield from (LONG + b"\n" for _ in range(min(lines, 1000)))
    else:
        yield from (LONG for _ in range(1000))


async def serve(shape: str) -> None:
    """Serve on a free port, which is printed, until the process is ended."""
    polls = 0

    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal polls
        url = urlsplit(target)
        if url.path == "/api/v0/logs/file":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for piece in log(shape, int(parse_qs(url.query)["lines"][0])):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return
        if url.path.startswith("/api/jobs/"):
            polls += 1
            body = document(url.path.rpartition("/")[2]).encode()
        elif url.path == "/stats":
            body = json.dumps(polls).encode()
        else:
            body = json.dumps({"ray_version": "2.60.0", "session_name": "stand-in"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await answer(head.split(b" ", 2)[1].decode(), writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def follow(shape: str, url: str) -> dict[str, float]:
    """Follow the job for some polls, and measure this process."""
    import airflow.jobs.triggerer_job_runner  # noqa: F401 - what else is in memory in a triggerer
    import httpx

    from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

    trigger = RayJobTrigger(
        ray_conn_id="ray_default", submission_id="job", session_name="stand-in", poll_interval=INTERVAL
    )

    async def run() -> None:
        async for _ in trigger.run():
            pass

    async def polls(client: httpx.AsyncClient) -> int:
        number: int = (await client.get(f"{url}/stats")).json()
        return number

    async with httpx.AsyncClient(timeout=120) as client:
        await polls(client)
        before = peak()
        following = None if shape == "waiting" else asyncio.create_task(run())
        lags, cpu_lags, end = [0.0], [0.0], time.perf_counter() + POLLS * INTERVAL
        cpu_before = time.process_time()
        # The poll after the last one that is measured has begun when that one has ended.
        while following is None or await polls(client) <= POLLS:
            for _ in range(20):
                clock, cpu = time.perf_counter(), time.thread_time()
                await asyncio.sleep(BEAT)
                lags.append(time.perf_counter() - clock - BEAT)
                cpu_lags.append(time.thread_time() - cpu)
            if following is None and time.perf_counter() > end:
                break
        spent = time.process_time() - cpu_before
        if following is not None:
            assert not following.done(), following.exception()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return {
        "added_mib": peak() - before,
        "lag_ms": 1000 * max(lags),
        "lag_cpu_ms": 1000 * max(cpu_lags),
        "cpu_s": spent,
    }


def peak() -> float:
    """Return the peak of this process's memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(shape: str) -> dict[str, float]:
    """Run one fake API and one process that follows."""
    itself = [sys.executable, __file__]
    with (
        subprocess.Popen([*itself, "--serve", shape], stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as home,
    ):
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            connection = json.dumps({"conn_type": "ray", "host": url})
            done = subprocess.run(
                [*itself, "--follow", shape, url],
                env={**os.environ, "AIRFLOW_HOME": home, "AIRFLOW_CONN_RAY_DEFAULT": connection},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        finally:
            server.kill()
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(readings: dict[str, dict[str, float]], load: float) -> str:
    """Return the text of the result."""
    rows = {
        "memory beyond the imports, MiB": "added_mib",
        "longest time that the loop stands, ms": "lag_ms",
        "the same in CPU time, ms": "lag_cpu_ms",
        f"CPU for {POLLS} polls, s": "cpu_s",
    }
    return "\n".join([
        "# Following a job with very long lines",
        "",
        f"| | {' | '.join(SHAPES[shape] for shape in readings)} |",
        f"| --- |{' --- |' * len(readings)}",
        *(
            f"| {title} | {' | '.join(f'{reading[name]:,.1f}' for reading in readings.values())} |"
            for title, name in rows.items()
        ),
        "",
        f"One running job, followed by one `RayJobTrigger` for {POLLS} polls, {INTERVAL:g} s apart. The "
        "cluster is a fake of Ray's Jobs API in its own process. The trigger also writes the lines to a log. "
        "By the clock, the time includes that in which other processes had the CPU.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {load:.1f} before.",
        "",
        "Made by `python benchmarks/long_lines.py`.",
        "",
    ])


def main(arguments: list[str]) -> None:
    """See the module docstring."""
    if arguments[:1] == ["--serve"]:
        asyncio.run(serve(arguments[1]))
    elif arguments[:1] == ["--follow"]:
        print(json.dumps(asyncio.run(follow(*arguments[1:]))))
    else:
        load = os.getloadavg()[0]
        text = shown({shape: measure(shape) for shape in SHAPES}, load)
        RESULT.write_text(text)
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
