# SPDX-License-Identifier: Apache-2.0
"""What an upload and a download of 1 GB through the Batch API cost an API server, on a disk and in S3.

Run ``python benchmarks/batch_uploads.py [MEGABYTES]``. A process of its own serves a small app by uvicorn,
and another one serves S3 (moto's). Writes ``benchmarks/results/batch_uploads.md``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.folder import folder as open_folder

MB = 1_000_000
PIECE = 1024 * 1024
PARTS = 8
"""Files that a download sends one after the other, as an output file has the parts of a dataset."""
LINE = b'{"custom_id": "0000000", "method": "POST", "url": "/v1/chat/completions", "body": {"text": "%s"}}\n'
BOUNDARY, UPLOADED = "0123456789abcdef", "content.jsonl"
ROUNDS = 3
TEXT = """# Uploads and downloads of the Batch API

A file of {size:,.0f} MB, in lines of 1,000 bytes, is uploaded by a form and read back, by one client. Memory
is that of uvicorn's process.

| transfer | storage | s | plain, s | ratio | peak + MiB | ping p95, ms | ping max, ms |
| --- | --- | --- | --- | --- | --- | --- | --- |
{table}

"Plain" writes or reads the same bytes in the benchmark's own process, without an API server: on the disk with
the same syncs, in S3 in requests of 8 MiB. A download sends {parts} files one after the other, as an output
file has the parts of a dataset; it reads 1 MiB a request. "Peak +" is the growth of the peak resident memory
during the transfer (`VmHWM`, begun anew before it), after smaller transfers. "Ping" is the time of another
request, which does nothing, every 20 ms during the transfer: it waits while the event loop is busy. On the
disk, seconds are medians of {rounds} transfers, memory and pings their worst; in S3 there is one transfer.

Client, server and moto share the machine's cores. moto reads a whole object for each range of it, and joins
the parts of an upload in memory at its end, so most of the seconds in S3 are moto's.
"""
MADE = "Made by `python benchmarks/batch_uploads.py`.\n"
RESULT = Path(__file__).parent / "results/batch_uploads.md"
SERVER = ("uvicorn", "fastapi", "starlette", "python-multipart", "obstore", "moto")
IDENTITY = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One upload or download.

    :param grown: the growth of the server's peak memory, in MiB.
    :param pings: seconds of other requests meanwhile, which do nothing.
    """

    seconds: float
    grown: float
    pings: list[float]


class Server:
    """A process that serves the app."""

    def __init__(self, uri: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        number = listener.fileno()
        command = [sys.executable, __file__, "serve", uri, str(number)]
        self._process = subprocess.Popen(command, pass_fds=[number])
        listener.close()
        self.client = httpx.Client(base_url=self.url, timeout=600)

    def memory(self, field: str) -> float:
        """Memory of the process in MiB, by its name in ``/proc``."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))

    def watched(self, transfer: Callable[[], None]) -> Transfer:
        """Do a transfer."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")  # the peak begins anew
        before, ends = self.memory("VmRSS"), threading.Event()
        pings: list[float] = []

        def ping() -> None:
            with httpx.Client(base_url=self.url, timeout=60) as client:
                while not ends.wait(0.02):
                    began = time.perf_counter()
                    client.get("/ping")
                    pings.append(time.perf_counter() - began)

        thread = threading.Thread(target=ping)
        thread.start()
        began = time.perf_counter()
        transfer()
        seconds = time.perf_counter() - began
        ends.set()
        thread.join()
        return Transfer(seconds, self.memory("VmHWM") - before, pings)

    def upload(self, size: int) -> None:
        """Send a file of lines."""
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        answer = self.client.post("/files", content=form(size), headers=headers)
        assert answer.json()["bytes"] == size, answer.text

    def download(self, parts: int, size: int) -> None:
        """Read some of the parts."""
        with self.client.stream("GET", "/content", params={"parts": parts}) as answer:
            assert sum(map(len, answer.iter_raw())) == size

    def end(self) -> None:
        """End the process."""
        self.client.close()
        self._process.terminate()
        self._process.wait()


def form(size: int) -> Iterator[bytes]:
    """The form of an upload, as the official client orders its parts."""
    begins = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    yield f'{begins}"purpose"\r\n\r\nbatch\r\n{begins}"file"; filename="x.jsonl"\r\n\r\n'.encode()
    yield from lines(size)
    yield f"\r\n--{BOUNDARY}--\r\n".encode()


def lines(size: int) -> Iterator[bytes]:
    """Lines of 1,000 bytes, a thousand at a time."""
    line = LINE % (b"x" * (1000 - len(LINE % b"")))
    for _ in range(size // MB):
        yield line * 1000


def serve(uri: str, listener: int) -> None:
    """Serve the app on a socket that is open."""
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse

    from airflow_provider_raybatch.plugins.batch_api.download import download
    from airflow_provider_raybatch.plugins.batch_api.upload import receive_upload
    from airflow_provider_raybatch.storage.stream import write_stream

    api, place = FastAPI(), open_folder(uri)

    async def files(request: Request) -> dict[str, Any]:
        return dataclasses.asdict(await receive_upload(request, write_stream(place, UPLOADED)))

    async def content(parts: int) -> StreamingResponse:
        entries = place.list("parts")[:parts]
        return await download(place, [(entry.path, entry.size) for entry in entries])

    async def ping() -> None:
        """Answer nothing."""

    files.__annotations__["request"] = Request  # FastAPI does not find names of a function
    content.__annotations__.update(parts=int)
    api.add_api_route("/files", files, methods=["POST"], response_model=None)
    api.add_api_route("/content", content, methods=["GET"], response_model=None)
    api.add_api_route("/ping", ping, methods=["GET"])
    config = uvicorn.Config(api, log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])


def serve_s3() -> None:
    """Serve S3 until the process is ended; print its address."""
    from tests.support.s3_server import serving

    with serving() as server:
        server.client().create_bucket(Bucket="bucket")
        print(server.url, flush=True)
        signal.pause()


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """A process that serves S3; yields the address of a folder in it."""
    process = subprocess.Popen([sys.executable, __file__, "s3"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.environ.update(IDENTITY, AWS_ENDPOINT_URL=process.stdout.readline().strip())
    try:
        yield "s3://bucket/files"
    finally:
        process.kill()
        process.wait()


def plain_write(place: Folder, source: Path) -> float:
    """Seconds in which a file of this machine is written there, by the same process."""
    began = time.perf_counter()
    with source.open("rb") as stream:
        place.write("plain", stream)
    seconds = time.perf_counter() - began
    place.delete(["plain"])
    return seconds


def plain_read(place: Folder) -> float:
    """Seconds in which the parts are read, one after the other."""
    began = time.perf_counter()
    for entry in place.list("parts"):
        with place.open(entry.path, entry.size) as stream:
            while stream.read(PIECE):
                pass
    return time.perf_counter() - began


def measure(uri: str, size: int, rounds: int) -> Iterator[tuple[str, list[Transfer], list[float]]]:
    """Upload and download, each beside the same bytes without an API server."""
    place = open_folder(uri)
    part = b"".join(lines(size // PARTS))
    place.write("parts/0", part)
    server = Server(uri)
    for _ in range(2):  # what is made once counts for no transfer
        server.upload(20 * MB)
        server.download(1, len(part))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        with source.open("wb") as stream:
            stream.writelines(lines(size))
        plain, transfers = [], []
        for _ in range(rounds):
            plain.append(plain_write(place, source))
            transfers.append(server.watched(lambda: server.upload(size)))
            head = place.head(UPLOADED)
            assert head is not None
            assert head.size == size
            place.delete([UPLOADED])
    yield "upload", transfers, plain
    for number in range(PARTS):
        place.write(f"parts/{number}", part)
    plain, transfers = [], []
    for _ in range(rounds):
        plain.append(plain_read(place))
        transfers.append(server.watched(lambda: server.download(PARTS, size)))
    yield "download", transfers, plain
    server.end()


def row(where: str, what: str, transfers: list[Transfer], plain: list[float]) -> str:
    """A line of the table: medians, but the worst of memory and pings."""
    seconds, alone = statistics.median(one.seconds for one in transfers), statistics.median(plain)
    pings = sorted(ping for one in transfers for ping in one.pings)
    return (
        f"| {what} | {where} | {seconds:.1f} | {alone:.1f} | {seconds / alone:.1f} "
        f"| {max(one.grown for one in transfers):.0f} "
        f"| {1000 * pings[int(0.95 * (len(pings) - 1))]:.0f} | {1000 * pings[-1]:.0f} |"
    )


def main(size: int, folder: str) -> None:
    rows = [row("disk", *found) for found in measure(f"{folder}/files", size, ROUNDS)]
    shutil.rmtree(folder)
    with s3() as uri:
        rows += [row("S3 (moto)", *found) for found in measure(uri, size, 1)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in SERVER)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} CPU cores, {memory:.0f} GiB, no GPU, shared with other work"
    load = f"(load {os.getloadavg()[1]:.0f} on average over 5 minutes)"
    python = platform.python_version()
    text = TEXT.format(size=size / MB, table="\n".join(rows), parts=PARTS, rounds=ROUNDS)
    RESULT.write_text(f"{text}\n{machine} {load}; Python {python}, {versions}.\n\n{MADE}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", uri, listener]:
            serve(uri, int(listener))
        case ["s3"]:
            serve_s3()
        case arguments:
            main(int(arguments[0]) * MB if arguments else 1000 * MB, tempfile.mkdtemp())
