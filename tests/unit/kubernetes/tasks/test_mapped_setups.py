# SPDX-License-Identifier: Apache-2.0
"""A mapped setup makes several clusters: one teardown deletes them all, and a task takes one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import rayjob_state
from airflow_provider_raybatch.kubernetes.operators import CreateRayCluster, DeleteRayCluster
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, left
from tests.support.kubernetes.own_clusters import heads, objects
from tests.support.kubernetes.shared_clusters import allow_sharing, created, deleted, used
from tests.support.kubernetes.world import World


@pytest.fixture(autouse=True)
def rights(kubernetes: World) -> None:
    allow_sharing(kubernetes)


def several(*returned: Any) -> Any:
    """Return the XComs of a mapped task as Airflow gives them: a sequence that is not a list."""

    class Returned(Sequence[Any]):
        def __len__(self) -> int:
            return len(returned)

        def __getitem__(self, index: Any) -> Any:
            return returned[index]

    return Returned()


def mapped() -> Any:
    cluster = KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0)
    return CreateRayCluster.partial(task_id="create").expand(ray_cluster=[cluster, cluster])


def test_one_teardown_deletes_the_clusters_of_a_mapped_setup(kubernetes: World) -> None:
    found = [created(Run(task_id="create", map_index=index)) for index in (0, 1)]
    deleted(several(*found))
    assert objects(kubernetes) == []
    deleted(several(*found))


def test_a_teardown_tries_each_cluster(kubernetes: World) -> None:
    first, second = (created(Run(task_id="create", map_index=index)) for index in (0, 1))
    first["namespace"] = first["claim"]["namespace"] = "forbidden"
    with pytest.raises(RayBatchException, match="forbidden"):
        deleted(several(first, second))
    assert [one.name for one in map(rayjob_state, kubernetes.store.all("RayJob"))] == [first["claim"]["name"]]


def test_teardown_without_any_cluster_is_a_success(kubernetes: World) -> None:
    deleted(several())
    assert objects(kubernetes) == []


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([{"lease": 600, "claim": {}}] * 2, r"is not a cluster; give .* \(of a mapped one by expand\("),
        ([], "the task 'create' has returned no cluster; clear it"),
    ],
    ids=["several", "none"],
)
def test_a_task_refuses_what_a_mapped_setup_returns(run: Run, returned: list[Any], told: str) -> None:
    with DAG("d", schedule=None):
        output: Any = mapped().output
        operator = batch(engine="echo", model=None, ray_cluster=output)
        sensor = RayJobSensor(task_id="wait", submission_id="job", ray_cluster=output)
    for one in (operator, sensor):
        with pytest.raises(RayBatchFailException, match=told):
            left(one, ray_cluster=several(*returned)).execute(run.context())


def test_each_mapped_task_has_the_cluster_of_its_setup(kubernetes: World) -> None:
    found = [created(Run(task_id="create", map_index=index)) for index in (0, 1)]
    for index, cluster in enumerate(found):
        run = Run(task_id="generate", map_index=index)
        assert used(cluster, "generate", run=run)["rows"] == 2
    assert {len(ray.jobs) for ray in heads(kubernetes)} == {1}


def test_a_mapped_setup_has_a_mapped_task_and_one_teardown() -> None:
    with DAG("d", schedule=None) as dag:
        setup = mapped()
        given: dict[str, Any] = {"source": "/in", "prompt": "Say {row.x}", "engine": "echo"}
        output: Any = setup.output
        task = RayBatchInferenceOperator.partial(
            task_id="generate", destination="s3://lake/{{ ti.map_index }}/", **given
        ).expand(ray_cluster=output)
        task >> DeleteRayCluster(task_id="delete", ray_cluster=output).as_teardown(setups=setup)
    assert (dag.task_dict["create"].is_setup, dag.task_dict["delete"].is_teardown) == (True, True)
    assert dag.task_dict["generate"].upstream_task_ids == {"create"}
