# SPDX-License-Identifier: Apache-2.0
"""The examples of the page about Kubernetes make clusters, and its image has versions that are tested."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.kubernetes import user_manifest
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.manifest import ray_cluster_spec
from airflow_provider_raybatch.kubernetes.kuberay.pods import worker_counts
from tests.support.documents import DOCS, ROOT, Block, blocks, first_column

PAGE = DOCS / "kubernetes.md"
CLUSTERS = [block for block in blocks("python") if block.page == PAGE and "KubeRayCluster(" in block.text]
(MANIFEST,) = [block for block in blocks("yaml") if block.page == PAGE and "kind: RayCluster" in block.text]


@pytest.mark.parametrize("block", CLUSTERS, ids=lambda block: block.name)
def test_examples_make_clusters(block: Block, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(MANIFEST.text, encoding="utf-8")
    found = {"__file__": str(tmp_path / "example.py")}
    exec(block.text, found)
    made = [value for value in found.values() if isinstance(value, KubeRayCluster)]
    assert made
    for cluster in made:
        cluster.check()
        assert ray_cluster_spec(cluster, worker_counts(None, cluster))["rayVersion"] == "2.60.0"


def test_page_has_every_argument() -> None:
    assert {field.name for field in fields(KubeRayCluster)} <= first_column(PAGE)


def test_images_versions_are_those_of_the_tests() -> None:
    text = (DOCS / "kubernetes_image.Dockerfile").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^ARG (\w+)=(.+)$", text, re.MULTILINE))
    pins = (ROOT / ".ci/requirements/dev-cpu.txt").read_text(encoding="utf-8")
    assert f"\nray=={versions['RAY']}\n" in pins
    assert f"\nvllm-cpu=={versions['VLLM']}" in pins


def test_rights_in_kubernetes_are_those_of_the_role() -> None:
    role = next(yaml.safe_load_all((DOCS / "kubernetes_role.yaml").read_text(encoding="utf-8")))
    rights: dict[str, str] = {}
    for one in role["rules"]:
        if "resourceNames" not in one:
            resource, verbs = one["resources"][0], ", ".join(one["verbs"])
            rights[resource] = f"{rights[resource]}; {verbs}" if resource in rights else verbs
    text = " ".join(
        (DOCS / "requirements.md").read_text(encoding="utf-8").partition("## Kubernetes")[2].split()
    )
    assert f"RayJobs ({rights['rayjobs']})" in text
    assert f"RayClusters ({rights['rayclusters']})" in text
    assert rights["secrets"] == "create; get"
    assert "Secrets (create), " in text
    assert "Secrets (get), too, where tasks share clusters" in text
    assert rights["pods"] == rights["events"] == "list"
    assert "pods and events (list)" in text


def test_oldest_ray_is_that_of_the_jobs() -> None:
    assert user_manifest.OLDEST_RAY == cluster_view._OLDEST_RAY
