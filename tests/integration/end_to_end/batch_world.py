# SPDX-License-Identifier: Apache-2.0
"""The Batch API in a whole Airflow: models that echo, users, and official clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from airflow_provider_raybatch.batch_api.store.ids import new_batch_id
from airflow_provider_raybatch.batch_api.store.records import BatchRecord
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.storage.folder import folder
from tests.support import openai_scenarios
from tests.support.openai_lines import CHAT, line

from .lake import BUCKET, Lake
from .ray_jobs import RayJobs
from .rest import Run
from .stack import AirflowStack

ROOT = f"s3://{BUCKET}/batch-api"
CONN_ID = "batch_lake"
"""The AWS connection of the root."""
PREFIX = "/raybatch/v1"
VLLM_MODEL = "meta-llama/Meta-Llama-3-8B-Instruct"
"""What vLLM's example file names."""
REPOSITORY = Path(__file__).parents[3]
SERVED = REPOSITORY / "tests/support/served_dags"
CLIENTS = {"3": sys.executable, "1": str(REPOSITORY / ".venv-openai1/bin/python")}
"""Pythons with an official client, by its major version."""
MAIN = "3-sync"
"""The client for all that one client is enough for."""
ANN, BOB = "ann", "bob"
"""Users of the stack, with the roles ``user`` and ``op``."""


def models(log: Path) -> dict[str, Any]:
    """The models that the stack serves; each engine writes what it is asked below `log`."""

    def echo(**engine_args: Any) -> dict[str, Any]:
        return {
            "engine": "echo",
            "ray_conn_id": "ray_default",
            "poll_interval": 1,
            # Batches of several models run side by side on the two CPUs of the cluster.
            "advanced": {"num_cpus": 0.25},
            "engine_args": {"request_log": str(log), **engine_args},
        }

    # About a second for each pair of rows, and each row is durable at once.
    at_once = {"output_options": {"rows_per_part": 1}, "advanced": {"num_cpus": 0.25, "batch_size": 1}}
    slow = {**echo(seconds_per_token=0.5, max_num_seqs=2), **at_once}
    return {
        "echo": {**echo(), "batches_at_once": 2},
        "vectors": {**echo(), "model_task": "embed"},
        "slow": slow,
        "limited": {**slow, "limits": {"max_tokens_total": 30}},
        VLLM_MODEL: echo(),
        "reusing": {**echo(), "reuse": str(responses(log))},
        "of-bob": {**echo(), "users": [BOB]},
        "demo": {
            "engine": "vllm",
            "ray_conn_id": "ray_default",
            "poll_interval": 1,
            "model": str(REPOSITORY / "dags_examples/demo_model/model"),
            "engine_args": {
                "enforce_eager": True,
                "kv_cache_memory_bytes": 256 * 1024**2,
                "max_num_seqs": 16,
                "dtype": "float32",
            },
        },
    }


def responses(log: Path) -> Path:
    """The folder of responses that the model `reusing` shares with other DAGs."""
    return log.parent / "responses"


def dag_ids() -> list[str]:
    """The DAGs of the models."""
    return [f"batches_{name.replace('/', '_')}" for name in models(Path())]


def settings(served: Path) -> dict[str, str]:
    """Airflow's settings of a stack that serves these models.

    :param served: for the models' file, and the engines' logs.
    """
    (served / "log").mkdir(parents=True)
    file = served / "models.json"
    file.write_text(json.dumps(models(served / "log")))
    return {
        "RAYBATCH__BATCH_API_ROOT": ROOT,
        "RAYBATCH__BATCH_API_AWS_CONN_ID": CONN_ID,
        "RAYBATCH__BATCH_API_MODELS": str(file),
    }


class _Player:
    """A process with an official client, which plays scenarios of :mod:`tests.support.openai_scenarios`."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._process = subprocess.Popen(
            [CLIENTS[version], openai_scenarios.__file__],
            env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of a task's scenarios by name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        played = json.loads(self._process.stdout.readline())
        assert played["version"].startswith(f"{self._version}."), played["version"]
        results: dict[str, Any] = played["results"]
        return results

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class BatchWorld:
    """A context manager: a stack with the settings above, connected to its bucket, and its clients.

    :param served: the folder that was given for the settings.
    """

    def __init__(self, airflow: AirflowStack, lake: Lake, jobs: RayJobs, served: Path) -> None:
        self.airflow, self.lake, self.jobs = airflow, lake, jobs
        self._log = served / "log"
        self._players: dict[str, _Player] = {}
        self._tokens: dict[str, str] = {}

    def __enter__(self) -> BatchWorld:
        self.lake.connect(self.airflow.api, CONN_ID)
        for dag_id in dag_ids():
            self.airflow.api.unpause(dag_id)
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._players.values():
            player.close()

    @property
    def url(self) -> str:
        """What clients have as `base_url`."""
        return f"{self.airflow.url}{PREFIX}"

    def token(self, user: str) -> str:
        """Log in as a client does, once."""
        if user not in self._tokens:
            login = {"username": user, "password": self.airflow.passwords[user]}
            answer = httpx.post(f"{self.airflow.url}/auth/token", json=login, timeout=60)
            assert answer.status_code == httpx.codes.CREATED, answer.text
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def play(
        self,
        client: str,
        scenarios: Mapping[str, Mapping[str, Any]],
        user: str = ANN,
        url: str = "",
        **options: Any,
    ) -> dict[str, Any]:
        """Play scenarios of :mod:`tests.support.openai_scenarios` side by side; return their results by name.

        :param client: major version and mode, as ``3-sync``.
        :param url: of a proxy; by default the server's own.
        :param options: of the client.
        """
        version, _, mode = client.partition("-")
        if version not in self._players:
            self._players[version] = _Player(version)
        results = self._players[version].play({
            "mode": mode,
            "url": url or self.url,
            "token": self.token(user),
            "scenarios": scenarios,
            "options": {"max_retries": 5, **options},
        })
        for name, result in results.items():
            if isinstance(result, dict) and "raised" in result:
                raise AssertionError(f"{client} {name}: {result['raised']}\n{self.airflow.evidence()}")
        return results

    def calls(self, *calls: Sequence[Any], client: str = "3-sync", **options: Any) -> list[Any]:
        """Make calls of a client, each a method's path and its arguments; return results or refusals."""
        played = self.play(client, {"it": {"play": "calls", "calls": calls}}, **options)
        results: list[Any] = played["it"]
        return results

    def cancel(self, *batches: Mapping[str, Any]) -> None:
        """Cancel ann's batches; what has ended meanwhile stays as it is."""
        for batch_id in {batch["id"] for batch in batches}:
            self.calls(["batches.cancel", {"batch_id": batch_id}])

    def upload(self, content: str) -> str:
        """Upload a file of ann's; return its id."""
        (made,) = self.calls(["files.create", {"file": ["a.jsonl", content], "purpose": "batch"}])
        return str(made["id"])

    def store(self) -> BatchStore:
        """The documents, as the server and the tasks see them."""
        shared = ("AIRFLOW__RAYBATCH__", "AIRFLOW__CORE__FERNET_KEY")
        given = {name: value for name, value in self.airflow.environment.items() if name.startswith(shared)}
        with patch.dict(os.environ, given):
            found = batch_api_settings()
        assert found is not None
        return BatchStore(folder(found.root, self.lake.credentials), found.secret)

    def create(self, file_id: str, model: str, seconds: float) -> Run:
        """Make a batch of a file as the server does, but with a window of any length.

        :returns: its DAG run, whose id is the batch's.
        """
        store, now = self.store(), time.time()
        file = store.file(file_id)
        assert file is not None
        record = BatchRecord(
            id=new_batch_id(),
            owner=file.owner,
            dag_id=f"batches_{model}",
            model=model,
            endpoint=CHAT,
            input_file_id=file.id,
            input=file.content,
            input_lines=file.lines,
            created_at=now,
            expires_at=now + seconds,
            outputs_expire_after=86_400.0,
        )
        store.add_batch(record)
        body = {"dag_run_id": record.id, "logical_date": None, "conf": {"batch_id": record.id}}
        self.airflow.api.call("POST", f"dags/{record.dag_id}/dagRuns", json=body)
        store.mark_triggered(record.id, now)
        return Run(self.airflow.api, record.dag_id, record.id)

    def run_of(self, batch: Mapping[str, Any]) -> Run:
        """The DAG run of a batch object."""
        (found,) = [
            run for dag_id in dag_ids() for run in self.airflow.api.runs(dag_id) if run.run_id == batch["id"]
        ]
        return found

    @property
    def reuse(self) -> dict[str, Any]:
        """Params of a DAG run that shares responses with the model `reusing`."""
        return {"reuse": str(responses(self._log)), "engine_args": {"request_log": str(self._log)}}

    def asked(self, marker: str) -> list[str]:
        """Prompts with this text that engines have begun, once for each time."""
        events = [json.loads(text) for file in self._log.glob("*") for text in file.read_text().splitlines()]
        return [one["prompt"] for one in events if one["event"] == "start" and marker in str(one["prompt"])]


def text_of(lines: Iterable[Any]) -> str:
    """A batch file of objects or texts."""
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)


def chats(marker: str, rows: int = 3, model: str = "echo", **body: Any) -> list[dict[str, Any]]:
    """Lines that ask a model about different texts."""
    return [
        line(
            f"{marker}-{number}",
            {"model": model, "messages": [{"role": "user", "content": f"{marker} {number}"}], **body},
            CHAT,
        )
        for number in range(rows)
    ]


GOOD = text_of(chats("good"))
"""A file without a fault."""


def create(file_id: str, **fields: Any) -> list[Any]:
    """A call of the client."""
    given = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    return ["batches.create", {**given, **fields}]


@pytest.fixture(scope="module")
def batches(airflow: AirflowStack, jobs: RayJobs, lake: Lake, served: Path) -> Iterator[BatchWorld]:
    """The Batch API, with its files in the bucket."""
    airflow.show_dags({})
    with BatchWorld(airflow, lake, jobs, served) as world:
        yield world


@pytest.fixture(scope="module")
def file_id(batches: BatchWorld) -> str:
    """A file of ann's."""
    return batches.upload(GOOD)
