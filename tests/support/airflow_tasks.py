# SPDX-License-Identifier: Apache-2.0
"""A fake Jobs API, and a real Airflow with its metadata in the test run's own folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter

from airflow_provider_raybatch.cluster.follow import loop
from airflow_provider_raybatch.cluster.jobs_api import client
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.submit import resolve
from tests.support.fake_ray import FakeRay, serving

JSON_VALUE: TypeAdapter[Any] = TypeAdapter(JsonValue)


@pytest.fixture(autouse=True)
def installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests run tasks without Airflow's task runner, which would serve Variables."""
    monkeypatch.setenv("AIRFLOW_VAR_RAYBATCH_INSTALLATION_ID", "this-airflow")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A cluster that the connection ``ray_default`` reaches."""
    hurry(monkeypatch)
    with serving(FakeRay()) as fake:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(fake.url))
        yield fake


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait before it asks a cluster again; how long that is, other tests look at."""
    monkeypatch.setattr(client, "_STOP_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(loop, "_ASK_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(resolve, "_POST_WAIT", 0.01)
    monkeypatch.setattr(RetryPolicy, "wait", lambda policy, attempt: 0.01)


class Clock:
    """The wall clock, which a test sets forward instead of waiting."""

    def __init__(self) -> None:
        self._time, self._ahead = time.time, 0.0

    def __call__(self) -> float:
        return self._time() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands for ``time.time`` of operators, triggers and the fake cluster."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


def connection(host: str | None, **fields: Any) -> str:
    """Return a connection in the form that Airflow reads from the environment."""
    return json.dumps({"conn_type": "ray", "host": host, **fields})


class Store:
    """The part of Airflow's task state store that operators use."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.broken = False

    def get(self, key: str, default: Any = None) -> Any:
        if self.broken:
            raise ConnectionError("the API server is away")
        return self.values.get(key, default)

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        if self.broken:
            raise ConnectionError("the API server is away")
        JSON_VALUE.validate_python(value)  # as Airflow does; it takes no tuple
        self.values[key] = json.loads(json.dumps(value))


class OutletEvents(dict[Any, Any]):
    def __missing__(self, asset: Any) -> Any:
        self[asset] = SimpleNamespace(extra={})
        return self[asset]


class Run:
    """One run of a task; gives each attempt a context like the task runner's."""

    def __init__(self, dag_id: str = "d", task_id: str = "t", run_id: str = "r", map_index: int = -1) -> None:
        self.store = Store()
        self.outlet_events = OutletEvents()
        self.xcoms: dict[str, Any] = {}
        self.returned_before: Any = None
        self.try_number, self.retries = 1, 2
        self.max_tries = self.retries
        self.ids = {"dag_id": dag_id, "task_id": task_id, "run_id": run_id, "map_index": map_index}

    def clear(self) -> None:
        """Count as Airflow does when a user clears the task instance."""
        self.max_tries = self.try_number + self.retries
        self.try_number += 1

    @property
    def _before(self) -> Any:
        return None if self.returned_before is None else SimpleNamespace(run_id="before")

    def context(self) -> Any:
        ti = SimpleNamespace(
            **self.ids,
            try_number=self.try_number,
            max_tries=self.max_tries,
            start_date=datetime.now(UTC),
            xcom_push=lambda key, value: self.xcoms.update({key: value}),
            get_previous_ti=lambda state, map_index: self._before,
            xcom_pull=lambda run_id, map_indexes: self.returned_before,
        )
        return {"ti": ti, "task_state_store": self.store, "outlet_events": self.outlet_events}


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Airflow's metadata database, in the folder that the test run made for Airflow."""
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True, timeout=180
    )


@pytest.fixture
def dag_test(airflow_db: None) -> Callable[[Any], Any]:
    """Run a DAG object in this process with Airflow's own task runner, triggers included."""

    def run_dag(dag: Any) -> Any:
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.serialization.serialized_objects import LazyDeserializedDAG
        from airflow.utils.session import create_session

        with create_session() as session:
            DagBundlesManager().sync_bundles_to_db(session=session)
            session.commit()
            from airflow.serialization.definitions.dag import SerializedDAG

            SerializedDAG.bulk_write_to_db("dags-folder", None, [dag], session=session)
            SerializedDagModel.write_dag(
                LazyDeserializedDAG.from_dag(dag), bundle_name="dags-folder", session=session
            )
        return dag.test()

    return run_dag
