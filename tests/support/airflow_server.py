# SPDX-License-Identifier: Apache-2.0
"""Airflow's own API server in this process, with this package's plugin and users who may see some DAGs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

_SETTINGS = {
    "AIRFLOW__CORE__AUTH_MANAGER": "tests.integration.end_to_end.auth.access_by_dag.AccessByDag",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer,guest:viewer,ann:user,bob:user",
    "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
    "AIRFLOW_API_APPS": "core",
    "RAYBATCH_TEST_GUEST_DAGS": "other",
    "_AIRFLOW_PROCESS_CONTEXT": "server",
    "AIRFLOW_VAR_RAYBATCH_INSTALLATION_ID": "this-airflow",
}

_ROLES = {"admin": "admin", "ann": "user", "bob": "user", "cat": "user"}


class Server:
    """The server, as requests see it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get(self, path: str, user: str | None = "viewer", **headers: str) -> Any:
        """Ask with a user's token, as programs do; ``None`` is anonymous."""
        login = {} if user is None else {"Authorization": f"Bearer {token(user)}"}
        return self._client.get(path, headers={**login, **headers})

    def by_cookie(self, path: str, user: str) -> Any:
        """Ask as a user's browser."""
        return self._client.get(path, headers={"Cookie": f"_token={token(user)}"})

    def post(self, path: str, user: str) -> Any:
        return self._client.post(path, headers={"Authorization": f"Bearer {token(user)}"})

    def delete(self, path: str, user: str) -> Any:
        return self._client.delete(path, headers={"Authorization": f"Bearer {token(user)}"})


def token(user: str) -> str:
    """A user's token, as Airflow's login makes it."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    role = _ROLES.get(user, "viewer")
    return str(get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role, teams=[])))


def configure(patch: pytest.MonkeyPatch) -> None:
    """Set what Airflow asks for when the server starts and with each request."""
    for name, value in _SETTINGS.items():
        patch.setenv(name, value)


@contextmanager
def serving() -> Iterator[Server]:
    """Serve the core API, and the DAGs `nightly` and `other`; ``guest`` may see the latter alone."""
    with pytest.MonkeyPatch.context() as patch:
        configure(patch)
        from airflow import plugins_manager
        from airflow.api_fastapi import app as airflow_app
        from fastapi.testclient import TestClient

        from airflow_provider_raybatch.plugins.raybatch import RayBatchPlugin

        # An environment may be older than the entry point, which packaging tests look at.
        patch.setattr(plugins_manager, "_load_entrypoint_plugins", lambda *_: ([RayBatchPlugin()], {}))
        for cached in [one for one in vars(plugins_manager).values() if hasattr(one, "cache_clear")]:
            cached.cache_clear()
        airflow_app.purge_cached_app()
        _write_dags("nightly", "other")
        app = airflow_app.cached_app(apps="core")
    with TestClient(app) as client:
        yield Server(client)
    airflow_app.purge_cached_app()


@pytest.fixture(scope="session")
def running_server(airflow_db: None) -> Iterator[Server]:
    """A server that all tests of a folder share."""
    with serving() as server:
        yield server


@pytest.fixture
def server(running_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, whose settings other tests in this process don't have."""
    configure(monkeypatch)
    return running_server


def _write_dags(*names: str) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with create_session() as session:
        DagBundlesManager().sync_bundles_to_db(session=session)
        session.commit()
        for dag in map(_dag, names):
            SerializedDAG.bulk_write_to_db("dags-folder", None, [dag], session=session)
            lazy = LazyDeserializedDAG.from_dag(dag)
            SerializedDagModel.write_dag(lazy, bundle_name="dags-folder", session=session)


def _dag(name: str) -> Any:
    """A DAG with a task, a mapped one, a decorated one, and one that asks no model."""
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG, task

    from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

    given: dict[str, Any] = {"source": "/in/*.parquet", "prompt": "{row.text}", "engine": "echo"}
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(name, schedule=None, start_date=start, is_paused_upon_creation=False) as dag:
        RayBatchInferenceOperator(task_id="label", destination="/out", **given)
        RayBatchInferenceOperator.partial(task_id="mapped", **given).expand(destination=["/a", "/b"])
        EmptyOperator(task_id="plain")

        @task.ray_batch
        def decorated() -> dict[str, Any]:
            return given

        decorated()
    return dag


def ran(
    fields: Mapping[str, Any] | None = None,
    state: str | None = "success",
    result: Any = None,
    run_id: str = "night",
    day: int = 1,
    task_id: str = "label",
    map_index: int = -1,
    dag_id: str = "nightly",
) -> None:
    """Set a task instance as it is after its end; its run is made if it is missing.

    :param fields: rendered ones; ``None`` where Airflow has dropped them.
    :param result: what the task returned.
    :param day: of November 2026, on which the run began.
    """
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, insert, select, update

    _make_run(dag_id, run_id, day)
    ids = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}

    with create_session() as session:
        mine = [getattr(TaskInstance, name) == value for name, value in ids.items()]
        done = session.execute(update(TaskInstance).where(*mine).values(state=state, duration=60.0))
        if not done.rowcount:
            _add_instance(session, ids, state)
        # Airflow 3.4 keeps them by the id of the task instance.
        kept, by_id = RenderedTaskInstanceFields, session.scalar(select(TaskInstance.id).where(*mine))
        names = {"task_instance_id": by_id} if hasattr(kept, "task_instance_id") else ids
        session.execute(delete(kept).where(*(getattr(kept, name) == value for name, value in names.items())))
        if fields is not None:
            session.execute(insert(kept).values(**names, rendered_fields=dict(fields)))
        XComModel.clear(**ids, session=session)
        if result is not None:
            XComModel.set(key="return_value", value=result, session=session, **ids)


def _make_run(dag_id: str, run_id: str, day: int) -> None:
    from airflow.models import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    with create_session() as session:
        if session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)) is not None:
            return
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        assert dag is not None
        at = datetime(2026, 11, day, tzinfo=UTC)
        dag.create_dagrun(
            run_id=run_id,
            logical_date=at,
            data_interval=(at, at),
            run_after=at,
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.SUCCESS,
            session=session,
        )


def _add_instance(session: Any, ids: Mapping[str, Any], state: str | None) -> None:
    """Another instance of a mapped task."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    first = session.scalar(
        select(TaskInstance).where(TaskInstance.dag_id == ids["dag_id"], TaskInstance.run_id == ids["run_id"])
    )
    dag = SerializedDagModel.get_dag(ids["dag_id"], session=session)
    task = dag.get_task(ids["task_id"])
    made = TaskInstance(
        task,
        run_id=ids["run_id"],
        map_index=ids["map_index"],
        dag_version_id=first.dag_version_id,
        state=state,
    )
    made.duration = 60.0
    session.add(made)
    session.flush()
