# SPDX-License-Identifier: Apache-2.0
"""The class that a DAG's author writes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.contract.failures import SpecError

IMAGE = "registry/team/ray:2.60.0-py312-gpu"


def test_repr_is_a_call() -> None:
    assert (
        repr(KubeRayCluster(image=IMAGE, workers=(0, 4)))
        == f"KubeRayCluster(image={IMAGE!r}, workers=(0, 4))"
    )


def test_equality_goes_by_arguments_and_there_is_no_hash() -> None:
    assert KubeRayCluster(image=IMAGE) == KubeRayCluster(image=IMAGE)
    assert KubeRayCluster(image=IMAGE) != KubeRayCluster(image=IMAGE, namespace="ml")
    with pytest.raises(TypeError, match="unhashable"):
        hash(KubeRayCluster(image=IMAGE))


def test_copies_by_pickle_are_equal() -> None:
    cluster = KubeRayCluster(image=IMAGE, cluster_wait=timedelta(minutes=5), labels={"a": "b"})
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_json_has_what_reaches_a_cluster_again() -> None:
    made = KubeRayCluster(image=IMAGE, namespace="ml", dashboard_address="proxy")
    found = KubeRayCluster.from_json(made.to_json())
    assert found.to_json() == made.to_json()
    assert (found.namespace, found.dashboard_address, found.name) == ("ml", "proxy", None)
    shared = KubeRayCluster(name="shared", kubernetes_conn_id="other")
    assert KubeRayCluster.from_json(shared.to_json()) == shared


def test_absent_values_of_templates_count_as_not_given() -> None:
    cluster = KubeRayCluster(
        image=IMAGE, kueue_queue="{{ a }}", workers="{{ b }}", labels="{{ c }}", kubernetes_conn_id="{{ d }}"
    )
    cluster.kueue_queue, cluster.workers = "None", "(0, 2)"
    cluster.labels, cluster.kubernetes_conn_id = "{'team': 'a'}", ""
    cluster.check()
    assert cluster == KubeRayCluster(image=IMAGE, workers=(0, 2), labels={"team": "a"})


def test_rendered_values_are_checked_as_given_ones() -> None:
    cluster = KubeRayCluster(image=IMAGE, namespace="{{ params.team }}", workers=("{{ a }}", 2))
    cluster.namespace = "Team A"
    with pytest.raises(SpecError, match=r"^namespace: 'Team A' is not a name"):
        cluster.check()


def test_delimiters_of_a_dag_are_left_to_the_run() -> None:
    assert KubeRayCluster(image=IMAGE, namespace="[[ params.team ]]").namespace == "[[ params.team ]]"


def test_import_loads_no_client_and_no_yaml() -> None:
    code = (
        "import sys; import airflow_provider_raybatch.cluster.kuberay.cluster; "
        "late = ('yaml', 'kubernetes', 'kubernetes_asyncio', 'httpx', 'airflow'); "
        "print([name for name in late if name in sys.modules])"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
