# SPDX-License-Identifier: Apache-2.0
"""The class that a DAG's author writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster

IMAGE = "registry/team/ray:2.60.0-py312-gpu"


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


def test_import_loads_no_client_and_no_yaml() -> None:
    code = (
        "import sys; import airflow_provider_raybatch.cluster.kuberay.cluster; "
        "late = ('yaml', 'kubernetes', 'kubernetes_asyncio', 'httpx', 'airflow'); "
        "print([name for name in late if name in sys.modules])"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
