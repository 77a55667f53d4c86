# SPDX-License-Identifier: Apache-2.0
"""What calls of the Batch API cost an API server, of this checkout and of another one, in turns.

Run ``python benchmarks/batch_api_calls.py OTHER_CHECKOUT``. Airflow's app and the clients are one process, so
that CPU seconds hold on a busy machine, too. Writes ``benchmarks/results/batch_api_calls.md``.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

ENTRIES, SHOWN = 100_000, 1_000
"""Files and batches of a user; of the newest ones there are records, too."""
CREATES = 60
ROUNDS = 1
PREFIX = "state/"
ROOT = f"s3://calls/{PREFIX}".rstrip("/")
CHAT = "/v1/chat/completions"
MODELS = {"small": {"model": "echo", "engine": "echo", "dag_id": "nightly"}}
HERE = Path(__file__).parents[1]
TEXT = f"""# Calls of the Batch API

CPU of each call in Airflow's API server and in its client, which are one process, before and after a change:
by turns. The state is on a disk or, where S3 is named, behind a stand-in of S3 in a process of its own, which
lists 1,000 names in an answer. Airflow's database is SQLite.
"Of {ENTRIES:,}" are calls of a user with as many files and as many batches. Of a create, Airflow takes
most for the DAG run.

| call | before | after | ratio |
| --- | ---: | ---: | ---: |
"""


def measured(folder: Path, on_s3: bool) -> dict[str, float]:
    """What each call costs here; the package is the one that Python finds first."""
    records, names = _entries()
    url = ""
    if on_s3:
        (folder / "names.json").write_text(json.dumps(names))
        command = [sys.executable, __file__, "--serve", str(folder / "names.json")]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        atexit.register(server.kill)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
    os.environ.update({
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__RAYBATCH__BATCH_API_ROOT": ROOT if on_s3 else f"{folder}/root",
        "AIRFLOW__RAYBATCH__BATCH_API_AWS_CONN_ID": "lake" if on_s3 else "",
        "AIRFLOW_CONN_LAKE": json.dumps({
            "conn_type": "aws",
            "login": "key",
            "password": "secret",
            "extra": {"endpoint_url": url, "region_name": "us-east-1"},
        }),
        "AIRFLOW__RAYBATCH__BATCH_API_SECRET": "s" * 40,
        "AIRFLOW__RAYBATCH__BATCH_API_MODELS": json.dumps(MODELS),
        "AIRFLOW__RAYBATCH__BATCH_API_MAX_USER_BYTES": str(10**15),
        **{
            f"AIRFLOW__RAYBATCH__BATCH_API_{name}": "0"
            for name in ("REQUESTS_PER_MINUTE", "BATCHES_PER_HOUR", "UNFINISHED_BATCHES")
        },
    })
    subprocess.run(["airflow", "db", "migrate"], check=True, capture_output=True)
    import pytest

    from tests.support.airflow_server import configure, serving

    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        configure(patch)
        with serving():
            return asyncio.run(_measured(records, {} if on_s3 else names, " on S3" * on_s3))


async def _measured(records: list[Any], names: dict[str, list[str]], where: str) -> dict[str, float]:
    import httpx

    from airflow_provider_raybatch.contract.batch_api.records import Started
    from airflow_provider_raybatch.plugins.batch_api.app import make_batch_app
    from tests.support.airflow_server import token
    from tests.support.batch_runs import lines, uploaded
    from tests.support.batch_server import store_of_server

    store, found = store_of_server(), dict[str, float]()
    app = make_batch_app()
    assert app is not None
    transport = httpx.ASGITransport(app=app)
    headers = {"Authorization": f"Bearer {token('ann')}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:

        async def call(method: str, path: str, **given: Any) -> Any:
            answer = await client.request(method, path, timeout=300, **given)
            assert answer.status_code == 200, answer.text
            return answer.json()

        files = iter([uploaded(store, lines(model="small"), owner="ann").id for _ in range(4 * CREATES)])

        async def create() -> str:
            body = {"input_file_id": next(files), "endpoint": CHAT, "completion_window": "24h"}
            return str((await call("POST", "/batches", json=body))["id"])

        batch = await create()
        store.start(batch, Started(at=time.time(), total=3, nonce="n"))

        async def cpu(what: str, calls: int, one: Callable[[], Awaitable[Any]]) -> None:
            await one()
            began = time.process_time()
            for _ in range(calls):
                await one()
            found[what] = 1000 * (time.process_time() - began) / calls

        await cpu(f"poll of a running batch{where}", 300, lambda: call("GET", f"/batches/{batch}"))
        await cpu(f"create{where}", CREATES, create)
        _fill(store, records, names)
        of = f"of {ENTRIES:,}{where}"
        await cpu(f"GET /files?limit=20 {of}", 3, lambda: call("GET", "/files?limit=20"))
        await cpu(f"GET /files?limit=1000 {of}", 2, lambda: call("GET", "/files?limit=1000"))
        await cpu(f"GET /batches {of}", 3, lambda: call("GET", f"/batches?after={batch}"))
        form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}\n")}}
        await cpu(f"POST /files {of}", 3, lambda: call("POST", "/files", **form))
    return found


def _fill(store: Any, records: list[Any], names: dict[str, list[str]]) -> None:
    for record in records:
        store.add_file(record)
    for folder, own in names.items():
        for name in own:
            Path(store.root.uri, folder, name).write_bytes(b"n")


def _entries() -> tuple[list[Any], dict[str, list[str]]]:
    """Records of ann's newest files, and the names of all her files and batches by their folders."""
    from airflow_provider_raybatch.contract import layout
    from airflow_provider_raybatch.contract.batch_api.ids import (
        new_batch_id,
        new_file_id,
        newest_first,
        owner_digest,
    )
    from airflow_provider_raybatch.contract.batch_api.listed import file_key
    from airflow_provider_raybatch.contract.batch_api.records import FileRecord

    now, records = time.time(), []
    files, batches = (layout.user_index(owner_digest("ann"), of) for of in (layout.FILES, layout.BATCHES))
    names: dict[str, list[str]] = {files: [], batches: []}
    for number in range(ENTRIES):
        at = now - 3600 - number
        record = FileRecord(
            id=new_file_id(), owner="ann", filename="a.jsonl", purpose="batch", bytes=3, created_at=at,
            expires_at=now + 86_400, content=[],
        )  # fmt: skip
        if number < SHOWN:
            records.append(record)
        names[files].append(file_key(record))
        names[batches].append(newest_first(at, new_batch_id()))
    return records, names


def _serve(file: Path) -> None:
    """Serve S3, and list some folders by names that are known: moto looks at all keys for each page."""
    import boto3

    from tests.support.s3_server import serving

    known = {f"{PREFIX}{folder}/": sorted(names) for folder, names in json.loads(file.read_text()).items()}

    def listing(app: Any) -> Any:
        def answer(environ: Any, start_response: Any) -> Any:
            query = dict(parse_qsl(environ["QUERY_STRING"]))
            prefix = query.get("prefix", "").rstrip("/") + "/"
            if environ["REQUEST_METHOD"] != "GET" or prefix not in known:
                return app(environ, start_response)
            names = known[prefix]
            after = query.get("continuation-token") or query.get("start-after", "").removeprefix(prefix)
            first = bisect_right(names, after)
            page = names[first : first + 1000]
            content = "".join(
                f"<Contents><Key>{prefix}{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f'<ETag>"e"</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>'
                for name in page
            )
            if is_cut := first + 1000 < len(names):
                content += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>"
            start_response("200 OK", [("Content-Type", "application/xml")])
            cut = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
            text = f"<ListBucketResult><Name>calls</Name><KeyCount>{len(page)}</KeyCount>{cut}{content}"
            return [f"{text}</ListBucketResult>".encode()]

        return answer

    with serving(listing) as server:
        access = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **access).create_bucket(
            Bucket="calls"
        )
        print(server.url, flush=True)
        threading.Event().wait()


def _round(checkout: Path) -> dict[str, float]:
    return {**_run(checkout), **_run(checkout, "--on-s3")}


def _run(checkout: Path, *options: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="calls-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", folder, *options],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=checkout,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{checkout}: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    if sys.argv[1] == "--measure":
        print(json.dumps(measured(Path(sys.argv[2]), on_s3="--on-s3" in sys.argv)))
        return
    if sys.argv[1] == "--serve":
        _serve(Path(sys.argv[2]))
        return
    before, after = [], []
    for _ in range(ROUNDS):
        before.append(_round(Path(sys.argv[1]).absolute()))
        after.append(_round(HERE))
    rows = []
    for what in before[0]:
        old, new = (statistics.median(one[what] for one in found) for found in (before, after))
        unit = "s" if what.endswith(", s") else "ms"
        rows.append(
            f"| {what.removesuffix(', s')} | {old:.1f} {unit} | {new:.1f} {unit} | {new / old:.2f} |\n"
        )
    versions = ", ".join(f"{name} {version(name)}" for name in ("apache-airflow", "fastapi", "starlette"))
    where = f"\n{os.cpu_count()} CPU cores ({platform.machine()}), shared with other work; "
    text = f"{TEXT}{''.join(rows)}{where}Python {platform.python_version()}, {versions}.\n"
    made = "\nMade by `python benchmarks/batch_api_calls.py OTHER_CHECKOUT`.\n"
    (HERE / "benchmarks/results/batch_api_calls.md").write_text(text + made)


if __name__ == "__main__":
    main()
