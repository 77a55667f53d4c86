# SPDX-License-Identifier: Apache-2.0
"""What calls of the Batch API cost an API server, of this checkout and of another one, in turns.

Run ``python benchmarks/batch_api_calls.py OTHER_CHECKOUT``. Airflow's app and the clients are one process, so
that CPU seconds hold on a busy machine, too. Writes ``benchmarks/results/batch_api_calls.md``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ENTRIES, SHOWN = 100_000, 1_000
"""Files and batches of a user; of the newest ones there are records, too."""
CREATES = 60
ROUNDS = 1
CHAT = "/v1/chat/completions"
MODELS = {"small": {"model": "echo", "engine": "echo", "dag_id": "nightly"}}
HERE = Path(__file__).parents[1]
TEXT = f"""# Calls of the Batch API

CPU of each call in Airflow's API server and in its client, which are one process, before and after a change:
by turns. The state is on a disk, and Airflow's database is SQLite.
"Of {ENTRIES:,}" are calls of a user with as many files and as many batches. Of a create, Airflow takes
most for the DAG run.

| call | before | after | ratio |
| --- | ---: | ---: | ---: |
"""


def measured(folder: Path) -> dict[str, float]:
    """What each call costs here; the package is the one that Python finds first."""
    os.environ.update({
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__RAYBATCH__BATCH_API_ROOT": f"{folder}/root",
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
            return asyncio.run(_measured())


async def _measured() -> dict[str, float]:
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

        await cpu("poll of a running batch", 300, lambda: call("GET", f"/batches/{batch}"))
        await cpu("create", CREATES, create)
        _fill(store)
        newest = (await call("GET", "/batches?limit=20"))["last_id"]
        await cpu(f"GET /files?limit=20 of {ENTRIES:,}", 5, lambda: call("GET", "/files?limit=20"))
        await cpu(f"GET /files?limit=1000 of {ENTRIES:,}", 3, lambda: call("GET", "/files?limit=1000"))
        await cpu(f"GET /batches of {ENTRIES:,}", 5, lambda: call("GET", f"/batches?after={newest}"))
        form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}\n")}}
        await cpu(f"POST /files of {ENTRIES:,}", 5, lambda: call("POST", "/files", **form))
    return found


def _fill(store: Any) -> None:
    """Let ann have many files and batches."""
    from airflow_provider_raybatch.contract import layout
    from airflow_provider_raybatch.contract.batch_api.ids import (
        new_batch_id,
        new_file_id,
        newest_first,
        owner_digest,
    )
    from airflow_provider_raybatch.contract.batch_api.listed import file_key
    from airflow_provider_raybatch.contract.batch_api.records import FileRecord

    now, places = (
        time.time(),
        [
            Path(store.root.uri, layout.user_index(owner_digest("ann"), of))
            for of in (layout.FILES, layout.BATCHES)
        ],
    )
    for number in range(ENTRIES):
        at = now - 3600 - number
        record = FileRecord(
            id=new_file_id(), owner="ann", filename="a.jsonl", purpose="batch", bytes=3, created_at=at,
            expires_at=now + 86_400, content=[],
        )  # fmt: skip
        if number < SHOWN:
            store.add_file(record)
        else:
            (places[0] / file_key(record)).write_bytes(b"n")
        (places[1] / newest_first(at, new_batch_id())).write_bytes(b"n")


def _round(checkout: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="calls-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--measure", folder],
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
        print(json.dumps(measured(Path(sys.argv[2]))))
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
