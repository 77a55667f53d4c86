# SPDX-License-Identifier: Apache-2.0
"""Memory of a job over images in S3, by their number, with the engine ``echo``.

Each line is a whole job on a Ray of its own, two replicas, over JPEGs of 640 x 480 that moto's S3 server has:
each is 0.9 MB of pixels once it is decoded. Memory is what the processes of driver, replicas, engines and
decoders have for themselves, all together, and beside it what Ray's object store holds; the server's is left
out.

    python benchmarks/image_memory.py [IMAGES ...] > benchmarks/results/image_memory.md
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.driver import run
from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.support.s3_server import S3Server

IMAGES = (2_500, 10_000)
WIDTH, HEIGHT = 640, 480
MIB = 1024**2
SERVER = """
import sys
from tests.support.s3_server import serving
with serving() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print("RESULT", json.dumps(measured(int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))), flush=True)
        return
    numbers = [int(one) for one in sys.argv[1:]] or IMAGES
    print("# Memory of a job over images in S3\n")
    print(f"Engine `echo`, two replicas, JPEGs of {WIDTH} x {HEIGHT}, {os.cpu_count()} CPU cores. Private")
    print("memory of all processes of the job, and what Ray's object store holds.")
    print("Made by `python benchmarks/image_memory.py`.\n")
    print("| images | MB of pixels | memory, MiB | object store, MiB | images a second |")
    print("| ---: | ---: | ---: | ---: | ---: |", flush=True)
    for images in numbers:
        with server() as url, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = apart(images, url, folder)
        pixels = images * WIDTH * HEIGHT * 3 / 1e6
        sizes = f"{found['memory']:,.0f} | {found['store']:,.0f}"
        print(f"| {images:,} | {pixels:,.0f} | {sizes} | {found['a_second']:.0f} |", flush=True)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """An S3 server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)


def apart(images: int, url: str, folder: str) -> dict[str, float]:
    """Measure in a fresh process."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    output = subprocess.run(
        [sys.executable, __file__, "--measure", str(images), url, folder],
        env=environment, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = (line for line in output.splitlines() if line.startswith("RESULT "))
    found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
    return found


def upload(server: S3Server, bucket: str, images: int) -> None:
    """Keep different pictures, and a file with a row for each."""
    lake, pick = folder_at(f"s3://{bucket}/pictures", server.credentials), np.random.default_rng(20261127)
    coarse = pick.integers(0, 255, (8, 8, 3), dtype=np.uint8)
    names = [f"{number}.jpg" for number in range(images)]
    for number, name in enumerate(names):
        coarse[number % 8, number // 8 % 8] = pick.integers(0, 255, 3)
        stream = io.BytesIO()
        Image.fromarray(coarse).resize((WIDTH, HEIGHT)).save(stream, "JPEG")
        lake.write(name, stream.getvalue())
    rows = [json.dumps({"id": name, "image": f"{lake.uri}/{name}"}) for name in names]
    lake.write("rows.jsonl", "\n".join(rows).encode())


def measured(images: int, url: str, folder: Path) -> dict[str, float]:
    import ray

    server = S3Server(url, "anybody", "anything")
    bucket = server.new_bucket()
    upload(server, bucket, images)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    document: dict[str, Any] = {
        "source": [f"s3://{bucket}/pictures/rows.jsonl"],
        "images": "image",
        "prompt": "What is on {row.id}?",
        "model": "echo",
        "engine": "echo",
        "sampling": {"temperature": 0},
        "replicas": 2,
        "destination": str(folder / "out"),
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "t"},
            "run_token": "token",
            "submission_id": "raybatch-benchmark-0",
        },
    }
    spec = parse(BatchInferenceSpec, document)
    assert spec.submission is not None
    with watched() as peak:
        summary = run(spec, spec.submission, lambda event: None, Secrets(aws=server.credentials))
    manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
    assert manifest.counts.ok == images
    return {**peak, "a_second": images / manifest.timing.generation_seconds}


@contextlib.contextmanager
def watched() -> Iterator[dict[str, float]]:
    """The most memory of this process and those below it, in MiB, read twice a second."""
    peak, over, here = {"memory": 0.0, "store": 0.0}, threading.Event(), psutil.Process()

    def watch() -> None:
        while not over.wait(0.5):
            private = store = 0
            for one in [here, *here.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    memory = one.memory_info()
                    private += memory.rss - memory.shared
                    if one.name() == "raylet":  # which holds the store
                        store = memory.shared
            peak["memory"] = max(peak["memory"], private / MIB)
            peak["store"] = max(peak["store"], store / MIB)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
