# SPDX-License-Identifier: Apache-2.0
"""An Airflow with two API servers behind a load balancer, over one root of the Batch API, and a Ray."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil

from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import EmbeddedClusterError
from airflow_provider_raybatch.cluster.local.head import RayHead
from tests.support.engine_log import Engine, engines

from ...integration.end_to_end.ports import free_ports
from ...integration.end_to_end.rest import AirflowApi, Run
from ...integration.end_to_end.stack import INTERVALS, AirflowStack
from ...integration.end_to_end.waiting import tail, wait_for
from .balancer import Balancer

PREFIX = "/raybatch/v1"
MODELS = ("usual", "deferred")
DAG_IDS = tuple(f"batches_{model}" for model in MODELS)
SERVERS = ("api-server", "api-server-2")
USER = "admin"
_DAGS = Path(__file__).parents[2] / "support" / "served_dags"
_DRIVER = "airflow_provider_raybatch.job"
_CPUS = 4
"""As Ray counts them: one for the engine of each batch that runs at once."""
_RAY = {"RAY_enable_worker_prestart": "0"}  # idle workers cost a small machine more than they save


def _model(log: Path, deferrable: bool) -> dict[str, Any]:
    return {
        "engine": "echo",
        "ray_conn_id": "ray_default",
        "deferrable": deferrable,
        "poll_interval": 1,
        "batches_at_once": 2,
        "advanced": {"batch_size": 8, "rows_in_flight": 32, "flush_interval": 0.5},
        "limits": {"max_restarts": 10, "cluster_wait": 60},
        "engine_args": {"request_log": str(log), "seconds_per_token": 0.08, "max_num_seqs": 16},
    }


class Moments:
    """What clients are doing right now, so that a kill comes in the middle of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: dict[str, int] = {}
        self._awaited = ""

    def is_awaited(self, name: str) -> bool:
        """Return whether a kill waits for such a call, which clients may make for it."""
        return name == self._awaited

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Tell that such a call begins."""
        with self._changed:
            self._begun[name] = self._begun.get(name, 0) + 1
            self._changed.notify_all()
        yield

    def wait_for_next(self, name: str, seconds: float) -> bool:
        """Wait until such a call begins; ``False`` if none does."""
        with self._changed:
            before, self._awaited = self._begun.get(name, 0), name
            try:
                return self._changed.wait_for(lambda: self._begun.get(name, 0) > before, seconds)
            finally:
                self._awaited = ""


class BatchApiWorld:
    """A context manager.

    :ivar store: the documents, as servers and tasks see them.
    :ivar balancer: where clients and tasks find the API servers.
    """

    def __init__(self) -> None:
        self._exit = ExitStack()
        self.moments = Moments()

    def __enter__(self) -> BatchApiWorld:
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bk-", dir="/tmp"))
        self._exit.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.log, self.root = self.folder / "log", self.folder / "root"
        self.log.mkdir()
        self.root.mkdir()
        models = self.folder / "models.json"
        models.write_text(json.dumps({name: _model(self.log, name == "deferred") for name in MODELS}))
        self.balancer = self._exit.enter_context(Balancer())
        self.cluster = self._started_cluster()
        settings = {
            **INTERVALS,
            "CORE__PARALLELISM": "6",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.balancer.url}/execution/",
            "RAYBATCH__BATCH_API_ROOT": str(self.root),
            "RAYBATCH__BATCH_API_MODELS": str(models),
        }
        self.airflow = self._exit.enter_context(AirflowStack({"served": _DAGS}, DAG_IDS, settings))
        (second,) = free_ports(1)
        self.ports = dict(zip(SERVERS, (self.airflow.port, second), strict=True))
        self.balancer.ports = list(self.ports.values())
        self.start(SERVERS[1])
        wait_for("the second server", lambda: self.answers(SERVERS[1]), 120, self.evidence)
        login = {"username": USER, "password": self.airflow.passwords[USER]}
        answer = httpx.post(f"{self.airflow.url}/auth/token", json=login, timeout=60)
        answer.raise_for_status()
        self.token = answer.json()["access_token"]
        self.api = AirflowApi(self.balancer.url, USER, self.airflow.passwords[USER], self.evidence)
        self._exit.callback(self.api.close)
        host, _, port = self.cluster.url.removeprefix("http://").partition(":")
        self.api.connection("ray_default", "ray", host=host, port=int(port))
        for dag_id in DAG_IDS:
            self.api.unpause(dag_id)
        self.store = self._store()

    def _started_cluster(self, attempts: int = 4) -> ClusterAddress:
        """Start Ray, which gives up after half a minute: too short on a busy machine, so it is repeated."""
        while True:
            head = RayHead(_RAY, num_cpus=_CPUS, with_token=False, startup_timeout=300)
            try:
                return self._exit.enter_context(head)
            except EmbeddedClusterError:
                attempts -= 1
                if not attempts:
                    raise

    def _store(self) -> BatchStore:
        shared = ("AIRFLOW__RAYBATCH__", "AIRFLOW__CORE__FERNET_KEY")
        given = {name: value for name, value in self.airflow.environment.items() if name.startswith(shared)}
        with patch.dict(os.environ, given):
            found = batch_api_settings()
        assert found is not None
        return batch_store(found)

    def url(self, server: str) -> str:
        """What clients have as `base_url` that go to one server."""
        return f"http://127.0.0.1:{self.ports[server]}{PREFIX}"

    def start(self, component: str) -> None:
        """Start a component that is not running."""
        if component == SERVERS[1]:
            port = str(self.ports[component])
            self.airflow.start("api-server", beside=component, API__PORT=port)
        else:
            self.airflow.start(component)

    def answers(self, server: str) -> bool:
        """Whether a server answers."""
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.ports[server]}/api/v2/version", timeout=5).is_success
        return False

    def evidence(self) -> str:
        return self.airflow.evidence() + "\n" + tail(self.airflow.log_of(SERVERS[1]))

    def engines(self) -> list[Engine]:
        """The lives of all engines."""
        return engines(self.log)

    def drivers(self) -> list[psutil.Process]:
        """The drivers of jobs that run."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.cmdline()[1:3] == ["-m", _DRIVER] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """The processes of tasks that run, each a child of its supervisor."""
        found = []
        for dag_id in DAG_IDS:
            answer = self.api.call("GET", f"dags/{dag_id}/dagRuns", params={"state": "running"})
            for run in answer["dag_runs"]:
                task = Run(self.api, dag_id, run["dag_run_id"]).task("answer").read()
                if task["state"] != "running" or not task["pid"]:
                    continue
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(task["pid"])
                    parent = process.parent()
                    if parent is not None and "LocalExecutor" in " ".join(parent.cmdline()):
                        found.append(process)
        return found

    def runs(self) -> list[dict[str, Any]]:
        """All DAG runs of batches, as Airflow knows them."""
        found: list[dict[str, Any]] = []
        for dag_id in DAG_IDS:
            while True:
                params = {"limit": 100, "offset": len([run for run in found if run["dag_id"] == dag_id])}
                answer = self.api.call("GET", f"dags/{dag_id}/dagRuns", params=params)
                found += answer["dag_runs"]
                if len(answer["dag_runs"]) < 100:
                    break
        return found

    def wait_until_whole(self) -> None:
        """Wait until each component is there again."""
        for server in SERVERS:
            wait_for(server, lambda server=server: self.answers(server), 120, self.evidence)
        time.sleep(0.5)

    def keep(self, folder: Path) -> None:
        """Copy what may explain a flaw: documents, engines' logs, and Airflow's."""
        shutil.rmtree(folder, ignore_errors=True)
        for part in (self.root, self.log):
            shutil.copytree(part, folder / part.name)
        for log in self.airflow.home.glob("*.log"):
            shutil.copy(log, folder)
        shutil.copytree(self.airflow.home / "logs", folder / "logs", dirs_exist_ok=True)
