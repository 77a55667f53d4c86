# SPDX-License-Identifier: Apache-2.0
"""The sweeper between the stand-in for a Kubernetes over HTTP and a real Airflow, as the example calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import dag, task

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.kuberay.manifest import Deadlines, rayjob_manifest
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import LEASE, rayjob_name
from airflow_provider_raybatch.kubernetes.left_clusters import delete_left_clusters
from tests.support.kubernetes.clock import Clock, timestamp
from tests.support.kubernetes.credentials import write_kubeconfig
from tests.support.kubernetes.garbage import collect_all
from tests.support.kubernetes.memory import set_status
from tests.support.kubernetes.role import role_rules
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import serving
from tests.support.programs import program
from tests.unit.kubernetes.kuberay.conftest import CLUSTER, NO_WORKERS

pytest.importorskip("kubernetes_asyncio")


class Namespace:
    """A namespace with RayJobs of tasks, as tests make them."""

    def __init__(self) -> None:
        self.clock = Clock(shift=-86_400.0)  # the server's clock is a day behind
        self.server = ApiServer(kuberay="1.7.0", clock=self.clock)
        self.server.access.grant("airflow", role_rules(), namespace="default", token="t")

    def cluster(self, namespace: str = "this-airflow", *, shared: bool = False, **ids: Any) -> str:
        """A cluster that runs, and was made an hour ago."""
        task = TaskKey(**{"namespace": namespace, "dag_id": "d", "run_id": "r", "task_id": "t", **ids})
        key = SubmissionKey(task, "token")
        name = rayjob_name(key, 0)
        made = rayjob_manifest(CLUSTER, NO_WORKERS, key, 0, "f", Deadlines(60, 36_000))
        if shared:
            made["metadata"]["annotations"][LEASE] = "1800"
        self.clock.advance(-3600)
        self.server.create(self.server.admin, "RayJob", "default", made)
        status = {"jobDeploymentStatus": "Running", "startTime": timestamp(self.clock.now())}
        set_status(self.server, "RayJob", name, status)
        self.clock.advance(3600)
        return name

    def names(self) -> set[str]:
        collect_all(self.server.store)
        return {one["metadata"]["name"] for one in self.server.store.all("RayJob", "default")}


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Namespace]:
    made = Namespace()
    with serving(made.server) as web:
        path = write_kubeconfig(tmp_path / "kubeconfig", web.url, token="t")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield made


def ended_run(dag_test: Callable[[Any], Any]) -> dict[str, str]:
    """Ids of a task that has succeeded."""

    @dag(dag_id="has_clusters", schedule=None)
    def has_clusters() -> None:
        @task
        def infer() -> None:
            pass

        infer()

    run = dag_test(has_clusters())
    return {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "infer"}


def test_example_deletes_what_was_left_alone(
    kubernetes: Namespace, dag_test: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    ids = ended_run(dag_test)
    left = kubernetes.cluster(**ids)
    kept = {
        kubernetes.cluster(**{**ids, "run_id": "manual__gone"}),
        kubernetes.cluster("another-airflow", **ids),
    }
    example = program("dags_examples/left_clusters.py", "left_clusters_under_test")
    assert dag_test(example.left_clusters()).state == "success"
    assert kubernetes.names() == kept
    assert f"RayJob {left} of has_clusters.infer" in caplog.text
    assert "Deleted 1 of 3 RayJobs in namespace default." in caplog.text


def test_a_dry_run_deletes_nothing(kubernetes: Namespace, dag_test: Callable[[Any], Any]) -> None:
    ids = ended_run(dag_test)
    left = kubernetes.cluster(**ids)
    found: list[str] = []

    @dag(dag_id="dry_run", schedule=None)
    def dry_run() -> None:
        @task
        def look() -> None:
            found.extend(delete_left_clusters(dry_run=True))

        look()

    assert dag_test(dry_run()).state == "success"
    assert (found, kubernetes.names()) == ([f"RayJob {left}"], {left})


def test_a_leased_cluster_is_left_when_its_dag_run_is_over(
    kubernetes: Namespace, dag_test: Callable[[Any], Any]
) -> None:
    """The task that has made it is over all the while."""
    ids = ended_run(dag_test)
    made = kubernetes.cluster(shared=True, **ids)
    example = program("dags_examples/left_clusters.py", "left_clusters_under_test")
    for state, left in ("running", {made}), ("queued", {made}), ("success", set()):
        set_state(ids, state)
        assert dag_test(example.left_clusters()).state == "success"
        assert kubernetes.names() == left


def set_state(ids: dict[str, str], state: str) -> None:
    """Give a DAG run a state, as if other tasks of it were in it."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        (run,) = DagRun.find(dag_id=ids["dag_id"], run_id=ids["run_id"], session=session)
        run.state = state
