# SPDX-License-Identifier: Apache-2.0
"""A multi-team Airflow, with its own server and database: no team's task replaces another team's id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk import DAG

from airflow_provider_raybatch.hooks import lookup
from airflow_provider_raybatch.hooks.lookup import VARIABLE
from tests.support.batches import batch
from tests.support.fake_ray import FakeRay

LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"


@pytest.fixture
def run_in(
    dag_test: Callable[[Any], Any], ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str | None], str]]:
    """Run a batch inference in a DAG of a team, and return its namespace."""
    from airflow.api_fastapi.execution_api.datamodels.token import TIClaims, TIToken
    from airflow.api_fastapi.execution_api.security import _jwt_bearer
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.team import Team
    from airflow.models.variable import Variable
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from airflow.utils.session import create_session
    from sqlalchemy import delete
    from starlette.requests import Request

    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.delenv("AIRFLOW_VAR_RAYBATCH_INSTALLATION_ID")
    monkeypatch.setattr(lookup, "_PAUSE", 0.0)
    monkeypatch.setattr(lookup, "_LONGEST_STAGGER", 0.0)
    tasks = ["00000000-0000-0000-0000-000000000000"]

    async def token(request: Request) -> TIToken:
        """As a worker's, of the task that runs: the server of `dag.test` knows it by some paths alone."""
        tasks[0] = request.path_params.get("task_instance_id", tasks[0])
        return TIToken(id=UUID(tasks[0]), claims=TIClaims(scope="execution"))

    overrides = in_process_api_server().app.dependency_overrides
    monkeypatch.setitem(overrides, _jwt_bearer, token)
    token.__annotations__["request"] = Request

    with create_session() as session:
        for team in ("team_a", "team_b"):
            session.merge(Team(name=team))

    def run(team: str | None) -> str:
        bundle = {"name": "dags-folder", "classpath": LOCAL_BUNDLE, "kwargs": {}, "team_name": team}
        monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
        with DAG(f"of_{team}_{len(ray.jobs)}", schedule=None) as dag:
            batch()
        before = set(ray.jobs)
        assert dag_test(dag).state == "success"
        (job,) = ray.jobs.keys() - before
        namespace: str = ray.spec(ray.jobs[job].body)["submission"]["task"]["namespace"]
        return namespace

    yield run
    monkeypatch.undo()
    DagBundlesManager().sync_bundles_to_db()  # the bundle is no team's again
    with create_session() as session:
        session.execute(delete(Variable))


def variables() -> dict[str, tuple[str | None, str]]:
    """Name, team and value of all Variables in Airflow's database."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return {one.key: (one.team_name, one.val) for one in session.scalars(select(Variable))}


def test_each_team_has_an_id_of_its_own(run_in: Callable[[str | None], str]) -> None:
    first, second = run_in("team_a"), run_in("team_b")
    assert run_in("team_a") == first != second
    assert variables() == {
        f"{VARIABLE}_of_team_a": ("team_a", first),
        f"{VARIABLE}_of_team_b": ("team_b", second),
    }


def test_an_id_for_all_teams_is_taken(run_in: Callable[[str | None], str]) -> None:
    everyones = run_in(None)
    assert run_in("team_a") == everyones
    assert variables() == {VARIABLE: (None, everyones)}
