# SPDX-License-Identifier: Apache-2.0
"""RayClusters that a user has already."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from tests.support.approved import AssertSentences
from tests.unit.kubernetes.kuberay.conftest import rayjob_of

SAMPLES = Path(__file__).parents[2] / "support/kubernetes/samples"
IMAGE = "rayproject/ray:2.60.0-py312"
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}


@pytest.mark.parametrize("file", sorted(SAMPLES.glob("*cluster*.yaml")), ids=lambda file: file.name)
def test_samples_are_accepted_with_an_image(file: Path) -> None:
    """The users' own sizes, volumes and groups stay; image, submission and token are ours."""
    job = rayjob_of(KubeRayCluster(spec=str(file), image=IMAGE))
    first = next(yaml.safe_load_all(file.read_text("utf-8")))
    own = first["spec"]
    spec = job["spec"]["rayClusterSpec"]
    assert job["spec"]["submissionMode"] == "InteractiveMode"
    assert spec["authOptions"]["mode"] == "token"
    assert spec["rayVersion"] == "2.60.0"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert group["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert spec.get("enableInTreeAutoscaling") == own.get("enableInTreeAutoscaling")
    assert [g["maxReplicas"] for g in spec["workerGroupSpecs"]] == [
        g["maxReplicas"] for g in own["workerGroupSpecs"]
    ]
    own_head, head = (one["headGroupSpec"]["template"]["spec"] for one in (own, spec))
    assert head.get("volumes") == own_head.get("volumes")


def test_queue_of_a_sample_suspends_the_job() -> None:
    job = rayjob_of(KubeRayCluster(spec=str(SAMPLES / "kueue.ray-cluster-sample.yaml"), image=IMAGE))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    assert job["spec"]["suspend"] is True


def test_samples_own_ray_is_too_old() -> None:
    with pytest.raises(
        SpecError, match=r"^spec: rayVersion: '2\.52\.0' is too old; use an image with Ray 2\.56"
    ):
        KubeRayCluster(spec=str(SAMPLES / "ray-cluster.autoscaler.yaml"))


def test_spec_is_judged_while_a_dag_is_parsed(tmp_path: Path) -> None:
    """Unless a template is in it."""
    with pytest.raises(SpecError, match=r"^spec: kind: 'Service' is not a RayCluster"):
        KubeRayCluster(spec={"kind": "Service"})
    assert KubeRayCluster(spec={"kind": "{{ params.kind }}"}).given
    with pytest.raises(SpecError, match=r"later\.yaml' can't be read"):
        KubeRayCluster(spec=tmp_path / "later.yaml")
    assert KubeRayCluster(spec=SAMPLES / "ray-cluster.autoscaler.yaml", image="{{ params.image }}").given


def with_cluster(**more: Any) -> dict[str, Any]:
    return {"rayVersion": "2.60.0", "headGroupSpec": HEAD, **more}


def manifest(kind: str = "RayCluster", version: str = "ray.io/v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": spec}


GROUP = {"groupName": "a", **HEAD}


def test_a_spec_that_makes_no_cluster_is_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda value, override=None: rayjob_of(KubeRayCluster(spec=value, pod_override=override)), SpecError
    )


def test_a_file_without_one_cluster_is_one_sentence(
    tmp_path: Path, assert_sentences: AssertSentences
) -> None:
    def refused(text: str) -> None:
        file = tmp_path / "cluster.yaml"
        file.write_text(text, encoding="utf-8")
        KubeRayCluster(spec=file).check()

    assert_sentences(refused, SpecError)


def test_a_clusters_own_token_is_refused() -> None:
    """KubeRay sets no token where a container has one, so that the head would refuse the task's."""
    variable = {
        "name": "RAY_AUTH_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "own", "key": "auth_token"}},
    }
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE, "env": [variable]}]}}}
    with pytest.raises(SpecError, match=r"^spec: RAY_AUTH_TOKEN is set for each cluster; remove it"):
        rayjob_of(KubeRayCluster(spec=with_cluster(headGroupSpec=head)))


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*before, key))


def outcome(spec: Any) -> str:
    try:
        return str(rayjob_of(KubeRayCluster(spec=spec, image=IMAGE))["kind"])
    except SpecError as error:
        return str(error)


@pytest.mark.parametrize(
    "junk", [None, "", -1, 1.5, True, [], {}, [None], {"a": None}, "x y", [{"name": 1}]], ids=repr
)
def test_junk_anywhere_in_a_manifest_is_one_sentence(junk: Any) -> None:
    """A manifest with one value replaced makes a cluster or a sentence, and never a traceback."""
    whole = next(yaml.safe_load_all((SAMPLES / "ray-cluster.autoscaler-v2.yaml").read_text("utf-8")))
    for path in paths(whole):
        changed = copy.deepcopy(whole)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if path:
            inner[path[-1]] = junk
        assert outcome(changed).endswith(("RayJob", "."))
