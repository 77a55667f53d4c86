# SPDX-License-Identifier: Apache-2.0
"""Airflow's templates in a KubeRay cluster, which is an object inside of an operator's argument."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import _serialize_template_field

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.operators.ray_job import RayJobOperator

IMAGE = "registry/team/ray:2.60.0"


def clustered(task_id: str, **fields: Any) -> RayJobOperator:
    cluster = KubeRayCluster(**{"image": IMAGE, **fields})
    return RayJobOperator(task_id=task_id, entrypoint="x", ray_cluster=cluster, ray_conn_id=None)


def rendered(cluster: KubeRayCluster, params: dict[str, Any], *, native: bool = False) -> KubeRayCluster:
    with DAG("d", schedule=None, render_template_as_native_obj=native) as dag:
        operator = RayJobOperator(task_id="t", entrypoint="x", ray_cluster=cluster, ray_conn_id=None)
    operator.render_template_fields({"params": params, "dag": dag})  # type: ignore[typeddict-item, arg-type]
    return operator.ray_cluster


NESTED = {
    "image": "{{ params.image }}",
    "workers": (0, "{{ params.most }}"),
    "namespace": "{{ params.team }}",
    "node_selector": {"team": "{{ params.team }}"},
    "pod_override": {
        "spec": {
            "serviceAccountName": "{{ params.team }}",
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "{{ params.team }}-models"}}],
        }
    },
    "kueue_queue": "{{ params.queue }}",
}
PARAMS = {"image": IMAGE, "most": 4, "team": "search", "queue": None}


@pytest.mark.parametrize("native", [False, True])
def test_templates_in_lists_and_dictionaries_are_rendered(native: bool) -> None:
    cluster = rendered(KubeRayCluster(**NESTED), PARAMS, native=native)
    cluster.check()
    assert (cluster.image, cluster.namespace, cluster.kueue_queue) == (IMAGE, "search", None)
    assert cluster.node_selector == {"team": "search"}
    assert cluster.pod_override is not None
    pod = cluster.pod_override["spec"]
    assert pod["serviceAccountName"] == "search"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "search-models"}
    assert cluster.workers == (0, 4 if native else "4")


def test_native_objects_leave_a_version_as_it_is() -> None:
    cluster = KubeRayCluster(image="x:latest", ray_version="{{ params.v }}")
    found = rendered(cluster, {"v": "2.60"}, native=True)
    found.check()
    assert found.ray_version == "2.60"


def test_tasks_that_share_a_cluster_render_their_own() -> None:
    shared = KubeRayCluster(image=IMAGE, namespace="{{ params.team }}")
    first, second = (rendered(shared, {"team": team}) for team in ("search", "ads"))
    assert (first.namespace, second.namespace) == ("search", "ads")
    assert shared.namespace == "{{ params.team }}"


def test_a_mistake_in_a_template_names_the_field() -> None:
    with pytest.raises(RayBatchFailException, match=r"^ray_cluster: Jinja can't render it"):
        rendered(KubeRayCluster(image="{{ params.x.y }}"), {})


def test_a_rendered_mistake_is_found() -> None:
    cluster = rendered(KubeRayCluster(image=IMAGE, gpus_per_worker="{{ params.gpus }}"), {"gpus": "-1"})
    with pytest.raises(SpecError, match=r"^gpus_per_worker: '-1' is not a number of GPUs"):
        cluster.check()


def test_results_of_other_tasks_come_first() -> None:
    with DAG("d", schedule=None):
        source = RayJobOperator(task_id="choose", entrypoint="x")
        one = clustered("one", image=source.output)
        two = clustered("two", node_selector={"team": source.output})
    assert source.downstream_task_ids == {one.task_id, two.task_id}


def test_rendered_arguments_are_shown_as_plain_data() -> None:
    shown = _serialize_template_field(rendered(KubeRayCluster(**NESTED), PARAMS), "ray_cluster")
    assert isinstance(shown, dict)
    assert shown["namespace"] == "search"
    assert "spec" not in shown, "an argument that was not given"
