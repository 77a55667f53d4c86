# SPDX-License-Identifier: Apache-2.0
"""RayClusters and RayJobs that a user has already."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.counts import worker_counts
from airflow_provider_raybatch.cluster.kuberay.kueue import QUEUE_LABEL
from airflow_provider_raybatch.cluster.kuberay.manifest import ray_cluster_spec, rayjob_manifest
from airflow_provider_raybatch.contract.failures import SpecError

from .conftest import KEY

SAMPLES = Path(__file__).parents[3] / "support/kubernetes/samples"
IMAGE = "rayproject/ray:2.60.0-py312"
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}


def made(cluster: KubeRayCluster) -> dict[str, Any]:
    cluster.check()
    counts = worker_counts(None, cluster)
    more = {"secret": "s", "pre_running_deadline": 60, "active_deadline": 60}
    return rayjob_manifest(cluster, counts, KEY, 0, "f", **more)


@pytest.mark.parametrize("file", sorted(SAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_samples_are_accepted_with_an_image(file: Path) -> None:
    """The users' own sizes, volumes and groups stay; image, submission and token are ours."""
    job = made(KubeRayCluster(spec=str(file), image=IMAGE))
    first = next(yaml.safe_load_all(file.read_text("utf-8")))
    own = first["spec"].get("rayClusterSpec", first["spec"])
    spec = job["spec"]["rayClusterSpec"]
    assert job["spec"]["submissionMode"] == "InteractiveMode"
    assert spec["authOptions"] == {"mode": "token", "secretName": "s"}
    assert spec["rayVersion"] == "2.60.0"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert group["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert spec.get("enableInTreeAutoscaling") == own.get("enableInTreeAutoscaling")
    assert [g["maxReplicas"] for g in spec["workerGroupSpecs"]] == [
        g["maxReplicas"] for g in own["workerGroupSpecs"]
    ]
    own_head, head = (one["headGroupSpec"]["template"]["spec"] for one in (own, spec))
    assert head.get("volumes") == own_head.get("volumes")
    assert "entrypoint" not in job["spec"]


def test_queue_of_a_sample_suspends_the_job() -> None:
    job = made(KubeRayCluster(spec=str(SAMPLES / "kueue.ray-cluster-sample.yaml"), image=IMAGE))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    assert job["spec"]["suspend"] is True


def test_what_is_not_used_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made(KubeRayCluster(spec=str(SAMPLES / "ray-job.kueue-toy-sample.yaml"), image=IMAGE))
    made(KubeRayCluster(spec=str(SAMPLES / "ray-cluster.autoscaler.yaml"), image=IMAGE))
    assert [record.getMessage() for record in caplog.records] == [
        "spec: not used of it, since the task sets or does not create it: entrypoint, "
        "shutdownAfterJobFinishes, ttlSecondsAfterFinished.",
        "spec: not used of it, since the task sets or does not create it: ConfigMap 'ray-example'.",
    ]


def test_samples_own_ray_is_too_old() -> None:
    with pytest.raises(
        SpecError, match=r"^spec: rayVersion: '2\.52\.0' is too old; use an image with Ray 2\.56"
    ):
        KubeRayCluster(spec=str(SAMPLES / "ray-cluster.autoscaler.yaml"))


def test_spec_is_judged_while_a_dag_is_parsed(tmp_path: Path) -> None:
    """Unless a template is in it, or its file is only on the workers."""
    with pytest.raises(SpecError, match=r"^spec: kind: 'Service' is not a cluster"):
        KubeRayCluster(spec={"kind": "Service"})
    assert KubeRayCluster(spec={"kind": "{{ params.kind }}"}).given
    assert KubeRayCluster(spec=tmp_path / "later.yaml").given
    assert KubeRayCluster(spec=SAMPLES / "ray-cluster.autoscaler.yaml", image="{{ params.image }}").given


def test_patch_of_a_spec_is_checked() -> None:
    cluster = KubeRayCluster(
        spec={"rayVersion": "2.60.0", "headGroupSpec": HEAD}, patch={"workerGroupSpecs": [{"groupName": "a"}]}
    )
    with pytest.raises(SpecError, match=r"^patch\.workerGroupSpecs\[0\]: groupName: 'a' is not a group, as "):
        ray_cluster_spec(cluster, worker_counts(None, cluster))


@pytest.mark.parametrize("given", [{"kueue_queue": "a"}, {"labels": {QUEUE_LABEL: "a"}}])
def test_two_queues_are_refused(given: dict[str, Any]) -> None:
    labelled = {**manifest(**with_cluster()), "metadata": {"labels": {QUEUE_LABEL: "b"}}}
    cluster = KubeRayCluster(spec=labelled, **given)
    with pytest.raises(
        SpecError, match=r"^kueue_queue: it is 'a', and labels have the queue 'b'; keep one\.$"
    ):
        ray_cluster_spec(cluster, worker_counts(None, cluster))


def test_autoscaler_in_a_queue_needs_an_annotation() -> None:
    spec = {"rayVersion": "2.60.0", "headGroupSpec": HEAD, "enableInTreeAutoscaling": True}
    with pytest.raises(SpecError, match=r"^kueue_queue: Kueue admits a cluster with an autoscaler only with"):
        made(KubeRayCluster(spec=spec, kueue_queue="team"))
    annotations = {"kueue.x-k8s.io/elastic-job": "true"}
    job = made(KubeRayCluster(spec=spec, kueue_queue="team", annotations=annotations))
    assert job["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] is True


def with_cluster(**more: Any) -> dict[str, Any]:
    return {"rayVersion": "2.60.0", "headGroupSpec": HEAD, **more}


def manifest(kind: str = "RayCluster", version: str = "ray.io/v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": spec}


GROUP = {"groupName": "a", **HEAD}
MISTAKES: list[tuple[Any, str]] = [
    (["x"], "spec: ['x'] is not a manifest; give a dictionary or the path of a YAML file."),
    (
        "cluster.yaml",
        "spec: 'cluster.yaml' is not an absolute path, and tasks run in other folders; give str(Path(",
    ),
    (
        "/nowhere/c.yaml",
        "spec: '/nowhere/c.yaml' can't be read (No such file or directory); correct the path",
    ),
    (manifest("Deployment"), "spec: kind: 'Deployment' is not a cluster; give a RayCluster or a RayJob."),
    (
        manifest(version="ray.io/v1alpha1"),
        "spec: apiVersion: 'ray.io/v1alpha1' is not KubeRay's; write 'ray.io/v1'.",
    ),
    (
        {"replicas": 1},
        "spec: ['replicas'] are not fields of a RayCluster; give its spec, with headGroupSpec.",
    ),
    (
        {"rayVersion": "2.60.0"},
        "spec: headGroupSpec: a value is needed here, and None is not a group; give its",
    ),
    (
        with_cluster(headGroupSpec={}),
        "spec: headGroupSpec: template.spec.containers: Ray's container is needed here",
    ),
    (
        with_cluster(headGroupSpec={"template": {"spec": {"containers": [{"name": "h"}]}}}),
        "spec: headGroupSpec: the container 'h' has no image; give one.",
    ),
    (
        with_cluster(headGroupSpec={**HEAD, "rayStartParams": {"labels": "a=b"}}),
        "spec: headGroupSpec: rayStartParams: KubeRay takes no labels there; write them into",
    ),
    (
        with_cluster(workerGroupSpecs=[HEAD]),
        "spec: workerGroupSpecs[0]: groupName: None must be a name that no other",
    ),
    (
        with_cluster(workerGroupSpecs=[GROUP, GROUP]),
        "spec: workerGroupSpecs[1]: groupName: 'a' must be a name that",
    ),
    (
        with_cluster(workerGroupSpecs=[{**GROUP, "minReplicas": 3, "maxReplicas": 1}]),
        "spec: workerGroupSpecs[0]: minReplicas: 3 is more than maxReplicas 1; lower it.",
    ),
    *(
        (
            with_cluster(workerGroupSpecs=[{**GROUP, name: value}]),
            f"spec: workerGroupSpecs[0]: {name}: {value!r} is not a whole number of at least {least}",
        )
        for name, value, least in [
            ("replicas", -1, 0),
            ("minReplicas", -2, 0),
            ("maxReplicas", "3", 0),
            ("numOfHosts", 0, 1),
        ]
    ),
    (
        with_cluster(headGroupSpec={**HEAD, "rayStartParams": {"redis-password": "geheim"}}),
        "spec: headGroupSpec: rayStartParams: redis-password: it looks like a secret, and a RayJob",
    ),
    (
        with_cluster(gcsFaultToleranceOptions={"redisPassword": {"value": "geheim"}}),
        "spec: gcsFaultToleranceOptions: redisPassword: value: it looks like a secret",
    ),
    (
        {**manifest(**with_cluster()), "metadata": {"annotations": {"x.example/api-token": "geheim"}}},
        "spec: metadata: annotations: x.example/api-token: it looks like a secret",
    ),
    (
        with_cluster(upgradeStrategy={"type": "None"}),
        "spec: upgradeStrategy: the cluster of a RayJob can't have it",
    ),
    (
        manifest("RayJob", entrypoint="x"),
        "spec: rayClusterSpec: a RayJob needs one here; give it, or a RayCluster.",
    ),
    (
        manifest("RayJob", clusterSelector={"a": "b"}),
        "spec: clusterSelector: the RayJob runs on a cluster that exists",
    ),
    (
        manifest("RayJob", rayClusterSpec=with_cluster(), managedBy="kueue.x-k8s.io/multikueue"),
        "spec: managedBy: 'kueue.x-k8s.io/multikueue' runs the RayJob on another Kubernetes",
    ),
    (
        {**manifest(**with_cluster()), "metadata": {"namespace": "ml"}},
        "spec: its namespace is 'ml', but namespace is None; give namespace='ml'.",
    ),
    (
        {**manifest(**with_cluster()), "metadata": "x"},
        "spec: metadata: it must be a dictionary, but it is 'x'.",
    ),
    (
        {**manifest(**with_cluster()), "metadata": {"annotations": {"since": date(2026, 1, 1)}}},
        "spec: it can't be written as JSON (Object of type date is not JSON serializable); use texts in",
    ),
    (with_cluster(rayVersion=2.6), "spec: rayVersion: 2.6 is not a version of Ray; give it as text, such as"),
]


@pytest.mark.parametrize(("value", "sentence"), MISTAKES, ids=[text[6:46] for _, text in MISTAKES])
def test_a_spec_that_makes_no_cluster_is_one_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(spec=value).check()
    assert str(caught.value).startswith(sentence)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not YAML: there is a mistake in line 2; correct it."),
        ("", "must hold one RayCluster or RayJob, but it holds nothing; leave one in it."),
        ("kind: RayCluster\n---\nkind: RayJob\n", "but it holds RayCluster, RayJob; leave one in it."),
        ("kind: ConfigMap\n---\nkind: Service\n", "but it holds ConfigMap, Service; leave one in it."),
        ("- a\n", "must hold one RayCluster or RayJob, but it holds list; leave one in it."),
    ],
)
def test_a_file_without_one_cluster_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(spec=file).check()
    assert str(caught.value) == f"spec: {str(file)!r} {sentence}" or str(caught.value).endswith(sentence)


def test_secret_in_a_file_is_refused(tmp_path: Path) -> None:
    variable = {"name": "HF_TOKEN", "value": "geheim"}
    head = {"template": {"spec": {"containers": [{"name": "h", "image": IMAGE, "env": [variable]}]}}}
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(manifest(rayVersion="2.60.0", headGroupSpec=head)), encoding="utf-8")
    with pytest.raises(SpecError, match=r"^spec: HF_TOKEN looks like a secret") as caught:
        KubeRayCluster(spec=file).check()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("where", ["spec", "patch"])
def test_a_clusters_own_token_is_refused(where: str) -> None:
    """KubeRay sets no token where a container has one, so that the head would refuse the task's."""
    variable = {
        "name": "RAY_AUTH_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "own", "key": "auth_token"}},
    }
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE, "env": [variable]}]}}}
    given: dict[str, Any] = {"spec": {"rayVersion": "2.60.0", "headGroupSpec": head}}
    if where == "patch":
        given = {"image": IMAGE, "patch": {"headGroupSpec": head}}
    with pytest.raises(SpecError, match=f"^{where}: RAY_AUTH_TOKEN is set for each cluster; remove it"):
        made(KubeRayCluster(**given))


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*before, key))


def outcome(spec: Any) -> str:
    try:
        return str(made(KubeRayCluster(spec=spec, image=IMAGE))["kind"])
    except SpecError as error:
        return str(error)


@pytest.mark.parametrize(
    "junk", [None, "", -1, 1.5, True, [], {}, [None], {"a": None}, "x y", [{"name": 1}]], ids=repr
)
def test_junk_anywhere_in_a_manifest_is_one_sentence(junk: Any) -> None:
    """A manifest with one value replaced makes a cluster or a sentence, and never a traceback."""
    whole = yaml.safe_load((SAMPLES / "ray-job.kueue-toy-sample.yaml").read_text("utf-8"))
    for path in paths(whole):
        changed = copy.deepcopy(whole)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if path:
            inner[path[-1]] = junk
        assert outcome(changed).endswith(("RayJob", "."))
