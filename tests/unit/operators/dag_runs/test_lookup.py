# SPDX-License-Identifier: Apache-2.0
"""Connections stored in Airflow's database are found in tasks, and by the same code outside of them.

Here, because the tests of this folder share a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.dataset import DatasetError, open_dataset
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support import s3_server
from tests.support.fake_ray import FakeRay, Script

QUICKSTART = Path(__file__).parents[4] / "docs" / "quickstart.md"


@contextmanager
def stored(**fields: Any) -> Iterator[None]:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(Connection(**fields))
    try:
        yield
    finally:
        with create_session() as session:
            session.query(Connection).filter_by(conn_id=fields["conn_id"]).delete()


@pytest.fixture
def stored_ray(airflow_db: None, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A cluster that `ray_default` reaches, which the environment doesn't know."""
    monkeypatch.delenv("AIRFLOW_CONN_RAY_DEFAULT")
    ray.token = "t0ken/+"
    with stored(conn_id="ray_default", conn_type="ray", host=ray.url, password=ray.token):
        yield ray


def test_the_quickstart_s_own_check_succeeds(stored_ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    (check,) = re.findall(r'python -c "(.*test_connection.*)"\n', QUICKSTART.read_text(encoding="utf-8"))
    exec(check)
    assert capsys.readouterr().out.startswith("(True, 'Ray ")


async def test_connection_is_found_in_an_event_loop(stored_ray: FakeRay) -> None:
    assert await RayHook().aread() == RayHook().read()


def test_connection_is_found_by_several_threads(stored_ray: FakeRay) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: RayHook().read().url, range(80)))
    assert found == {stored_ray.url}


def test_warm_engines_are_listed(stored_ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    stored_ray.script = lambda ray, body: Script(["no engine is kept"])
    main(["show", "--engines", "--conn-id", "ray_default"])
    assert capsys.readouterr().out == "no engine is kept\n"


def test_tasks_and_triggers_find_it(stored_ray: FakeRay, dag_test: Callable[[Any], Any]) -> None:
    with DAG("stored_connection", schedule=None) as dag:
        job = RayJobOperator(task_id="job", entrypoint="echo", wait_for_completion=False)
        RayJobSensor(task_id="sensor", submission_id=job.output, deferrable=True, poke_interval=0.1)
    assert dag_test(dag).state == "success"


def test_a_dataset_on_s3_is_opened(airflow_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook; the environment has no credentials."""
    pytest.importorskip("airflow.providers.amazon")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with s3_server.serving() as server:
        bucket = server.new_bucket()
        extra = f'{{"endpoint_url": "{server.url}", "region_name": "us-east-1"}}'
        keys = {"login": "key", "password": "secret/+"}
        with (
            stored(conn_id="lake", conn_type="aws", extra=extra, **keys),
            pytest.raises(DatasetError, match=f"manifest: 's3://{bucket}/out/manifest.json' can't be read"),
        ):
            open_dataset(f"s3://{bucket}/out", aws_conn_id="lake")
        with pytest.raises(RayConnectionError, match="the connection 'lake' doesn't exist"):
            open_dataset(f"s3://{bucket}/out", aws_conn_id="lake")


def test_other_code_looks_up_as_before(stored_ray: FakeRay) -> None:
    before = dict(os.environ)
    RayHook().read()
    assert dict(os.environ) == before
    with pytest.raises(AirflowNotFoundException):
        BaseHook.get_connection("ray_default")
