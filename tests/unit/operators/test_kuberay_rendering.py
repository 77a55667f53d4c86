# SPDX-License-Identifier: Apache-2.0
"""Airflow's templates in a KubeRay cluster, which is an object inside of an operator's argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.execution_time.task_runner import _serialize_template_field
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.operators.rendering import LiteralTextOperator

IMAGE = "registry/team/ray:2.60.0"


class Clustered(LiteralTextOperator):
    """An operator that has only a cluster."""

    template_fields: Sequence[str] = ("ray_cluster",)
    template_ext: ClassVar[Sequence[str]] = ()

    def __init__(self, *, ray_cluster: KubeRayCluster, **more: Any) -> None:
        super().__init__(**more)
        self.ray_cluster = ray_cluster

    def execute(self, context: Any) -> None:
        """Do nothing."""


def rendered(cluster: KubeRayCluster, params: dict[str, Any], *, native: bool = False) -> KubeRayCluster:
    with DAG("d", schedule=None, render_template_as_native_obj=native) as dag:
        operator = Clustered(task_id="t", ray_cluster=cluster)
    operator.render_template_fields({"params": params, "dag": dag})  # type: ignore[typeddict-item, arg-type]
    return operator.ray_cluster


NESTED = {
    "image": "{{ params.image }}",
    "workers": (0, "{{ params.most }}"),
    "namespace": "{{ params.team }}",
    "labels": {"team": "{{ params.team }}"},
    "pod_override": {
        "spec": {
            "serviceAccountName": "{{ params.team }}",
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "{{ params.team }}-models"}}],
        }
    },
    "patch": {"workerGroupSpecs": [{"groupName": "a", "maxReplicas": "{{ params.most }}"}]},
    "kueue_queue": "{{ params.queue }}",
}
PARAMS = {"image": IMAGE, "most": 4, "team": "search", "queue": None}


@pytest.mark.parametrize("native", [False, True])
def test_templates_in_lists_and_dictionaries_are_rendered(native: bool) -> None:
    cluster = rendered(KubeRayCluster(**NESTED), PARAMS, native=native)
    cluster.check()
    assert (cluster.image, cluster.namespace, cluster.kueue_queue) == (IMAGE, "search", None)
    assert cluster.labels == {"team": "search"}
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
    cluster = rendered(KubeRayCluster(image=IMAGE, namespace="{{ params.team }}"), {"team": "Ads Team"})
    with pytest.raises(SpecError, match=r"^namespace: 'Ads Team' is not a name"):
        cluster.check()


class Source(BaseOperator):
    """Another task."""

    def execute(self, context: Any) -> str:
        """Choose."""
        return "team-a"


def test_results_of_other_tasks_come_first() -> None:
    with DAG("d", schedule=None):
        source = Source(task_id="choose")
        nested = {"team": source.output}
        one = Clustered(task_id="one", ray_cluster=KubeRayCluster(image=source.output))  # type: ignore[arg-type]
        two = Clustered(
            task_id="two",
            ray_cluster=KubeRayCluster(image=IMAGE, labels=nested),  # type: ignore[arg-type]
        )
    assert source.downstream_task_ids == {one.task_id, two.task_id}


def test_serialised_dag_is_the_same_at_each_parse() -> None:
    def parsed() -> dict[str, Any]:
        with DAG("d", schedule=None) as dag:
            Clustered(task_id="t", ray_cluster=KubeRayCluster(**NESTED))
        return DagSerialization.to_dict(dag)

    first = parsed()
    assert first == parsed()
    (task,) = first["dag"]["tasks"]
    shown = task["__var"]["ray_cluster"]
    assert shown["pod_override"]["spec"]["serviceAccountName"] == "{{ params.team }}"
    assert "0x" not in str(shown)
    assert "spec" not in shown


def test_rendered_arguments_are_shown_as_plain_data() -> None:
    shown = _serialize_template_field(rendered(KubeRayCluster(**NESTED), PARAMS), "ray_cluster")
    assert isinstance(shown, dict)
    assert shown["namespace"] == "search"
