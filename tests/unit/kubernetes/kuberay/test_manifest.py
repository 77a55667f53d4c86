# SPDX-License-Identifier: Apache-2.0
"""What is created on Kubernetes, judged by the schemas of KubeRay 1.6.2 and 1.7.0."""

from __future__ import annotations

import base64
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.kuberay.manifest import (
    ray_cluster_spec,
    secret_manifest,
)
from airflow_provider_raybatch.kubernetes.kuberay.pods import worker_counts
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    ClusterClaim,
    rayjob_name,
    run_labels,
)
from tests.support.kubernetes.schemas import Schemas

from .conftest import KEY, rayjob_of

IMAGE = "registry/team/ray:2.60.0-py312-gpu"
POD_TEMPLATE = json.loads(
    (Path(__file__).parents[3] / "support/kubernetes/crds/podtemplate-1.7.0.json").read_text("utf-8")
)["openAPIV3Schema"]
EVERYTHING: dict[str, Any] = {
    "accelerator_type": "H100",
    "workers": (1, 8),
    "node_selector": {"pool": "gpu"},
    "namespace": "ml",
    "pod_override": {
        "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/owner": "search"}},
        "spec": {
            "serviceAccountName": "ray",
            "imagePullSecrets": [{"name": "pull"}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {
                    "imagePullPolicy": "Always",
                    "env": [
                        {"name": "HF_HOME", "value": "/models"},
                        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                    ],
                    "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "m"}}],
        },
    },
}


def made(**arguments: Any) -> dict[str, Any]:
    return rayjob_of(KubeRayCluster(image=IMAGE, **arguments))


def pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of the head and of each group of workers."""
    spec = job["spec"]["rayClusterSpec"]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def strict(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, as the server does with ``fieldValidation=Strict``."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    return found


@pytest.fixture(scope="module")
def pod_schema() -> Any:
    """What validates pod templates; it is large, so it is read once."""
    schema = strict(POD_TEMPLATE)
    found = jsonschema.validators.validator_for(schema)
    found.check_schema(schema)
    return found(schema)


@pytest.mark.parametrize(
    ("kuberay", "arguments"),
    list(
        product(
            ("1.6.2", "1.7.0"),
            (
                {},
                {"accelerator_type": "L4"},
                {"workers": 2},
                {"kueue_queue": "team", "workers": 2},
                EVERYTHING,
            ),
        )
    ),
)
def test_every_field_is_in_the_schemas(kuberay: str, arguments: dict[str, Any], pod_schema: Any) -> None:
    job = made(**arguments)
    reading = Schemas(kuberay).read("RayJob", job)
    assert (reading.unknown, reading.causes) == ([], [])
    for template in pods(job):
        pod_schema.validate(template)


def test_rayjob_is_a_lease_that_always_ends() -> None:
    spec = made()["spec"]
    del spec["rayClusterSpec"]
    assert spec == {
        "submissionMode": "InteractiveMode",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "preRunningDeadlineSeconds": 1860,
        "activeDeadlineSeconds": 3600,
        "backoffLimit": 0,
    }


def test_workers_scale_from_zero_and_name_their_accelerator() -> None:
    """Ray's autoscaler knows an accelerator of a group without nodes only by the group's parameters.

    KubeRay reads them as JSON once quotes are stripped; Ray strips one character at each end.
    """
    spec = made(accelerator_type="H100")["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (0, 0, 4)
    text = group["rayStartParams"]["resources"]
    assert json.loads(text.strip("'\"` ")) == json.loads(text[1:-1]) == {"accelerator_type:H100": 1}
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert (
        resources["limits"] == resources["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    )
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"


def test_head_has_no_ray_cpus() -> None:
    spec = made(**EVERYTHING)["spec"]["rayClusterSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_shared_memory_is_left_to_kuberay() -> None:
    """It gives Ray's container as much as the memory that it has in the end."""
    for pod in pods(made(accelerator_type="L4")):
        assert "volumes" not in pod["spec"]
        assert "volumeMounts" not in pod["spec"]["containers"][0]


def test_every_pod_is_overridden_and_stays_rays() -> None:
    head, worker = (pod["spec"] for pod in pods(made(**EVERYTHING)))
    for pod, name in ((head, "ray-head"), (worker, "ray-worker")):
        assert (pod["serviceAccountName"], pod["imagePullSecrets"]) == ("ray", [{"name": "pull"}])
        (container,) = pod["containers"]
        assert (container["name"], container["image"], container["imagePullPolicy"]) == (
            name,
            IMAGE,
            "Always",
        )
        assert [one["name"] for one in container["env"]] == ["HF_HOME", "HF_TOKEN"]
        assert [one["name"] for one in container["volumeMounts"]] == ["models"]
        assert [one["name"] for one in pod["volumes"]] == ["models"]
    assert [one["key"] for one in head["tolerations"]] == ["spot"]
    assert [one["key"] for one in worker["tolerations"]] == ["nvidia.com/gpu", "spot"]
    assert ("nodeSelector" in head, worker["nodeSelector"]) == (False, {"pool": "gpu"})


def test_a_given_spec_is_overridden_too() -> None:
    container = {"name": "own-name", "image": IMAGE}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": {"template": {"spec": {"containers": [container]}}}}
    override = {"spec": {"containers": [{"tty": True}, {"name": "log", "image": "fluent-bit"}]}}
    cluster = KubeRayCluster(spec=spec, pod_override=override)
    (head,) = [ray_cluster_spec(cluster, worker_counts(None, cluster))["headGroupSpec"]["template"]]
    assert head["spec"]["containers"] == [container | {"tty": True}, {"name": "log", "image": "fluent-bit"}]
    assert override == {"spec": {"containers": [{"tty": True}, {"name": "log", "image": "fluent-bit"}]}}


def test_amds_gpus_have_a_resource_of_their_own() -> None:
    (group,) = made(accelerator_type="AMD-Instinct-MI300X-OAM")["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "64Gi", "amd.com/gpu": "1"}
    assert pod["tolerations"][0]["key"] == "amd.com/gpu"


def test_kueue_admits_whole_clusters() -> None:
    job = made(kueue_queue="team", accelerator_type="L4")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "enableInTreeAutoscaling" not in job["spec"]["rayClusterSpec"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (4, 4, 4)


def test_node_autoscalers_move_no_pod_that_works() -> None:
    """They would repack nodes, and with the head's pod the job is lost. Each can be set or removed."""
    head, worker = pods(made(accelerator_type="L4"))
    assert head["metadata"]["annotations"] == {
        "karpenter.sh/do-not-disrupt": "true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    }
    assert worker["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    own = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    override = {"metadata": {"annotations": own}}
    head, worker = pods(made(accelerator_type="L4", pod_override=override))
    assert head["metadata"]["annotations"].items() >= own.items() <= worker["metadata"]["annotations"].items()


def test_services_of_the_namespace_set_no_variables() -> None:
    """A Service named `vllm` would set `VLLM_PORT` to a URL, with which vLLM does not start."""
    assert [pod["spec"]["enableServiceLinks"] for pod in pods(made(accelerator_type="L4"))] == [False, False]


def test_fixed_counts_need_no_autoscaler() -> None:
    assert "enableInTreeAutoscaling" not in made(workers=2)["spec"]["rayClusterSpec"]


def test_a_spec_replaces_nothing_that_is_ours() -> None:
    annotations = {"raybatch/number": "x", "raybatch/shared": "60", "team": "ml"}
    head = {"template": {"spec": {"containers": [{"name": "h", "image": IMAGE}]}}}
    own = {
        "kind": "RayCluster",
        "metadata": {"labels": {"raybatch/run": "x", "queue": "q"}, "annotations": annotations},
        "spec": {"headGroupSpec": head, "authOptions": {"mode": "disabled"}},
    }
    job = rayjob_of(KubeRayCluster(spec=own))
    assert job["metadata"]["labels"] == {"queue": "q", **run_labels(KEY)}
    assert job["metadata"]["annotations"]["raybatch/number"] == "3"
    assert job["metadata"]["annotations"]["team"] == "ml"
    assert "raybatch/shared" not in job["metadata"]["annotations"]
    assert job["spec"]["rayClusterSpec"]["authOptions"]["mode"] == "token"


def test_names_fit_kubernetes_and_tell_runs_apart() -> None:
    longest = TaskKey(
        namespace="n" * 250, dag_id="d" * 250, run_id="Ü" * 250, task_id="t" * 250, map_index=9999
    )
    keys = [SubmissionKey(longest, "a"), SubmissionKey(longest, "b"), KEY]
    names = [rayjob_name(key, 999) for key in keys]
    assert len(set(names)) == 3
    for key, name in zip(keys, names, strict=True):
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert len(name) <= 47
        assert all(re.fullmatch("[a-z0-9]{1,63}", label) for label in run_labels(key).values())
    tokens = [made()["spec"]["rayClusterSpec"]["authOptions"]["secretName"] for _ in range(2)]
    assert tokens[0] != tokens[1]


def test_two_airflows_with_the_same_ids_share_no_name() -> None:
    here, there = (
        SubmissionKey(TaskKey(namespace=name, dag_id="d", run_id="r", task_id="t"), "try1-x") for name in "ab"
    )
    assert rayjob_name(here, 0) != rayjob_name(there, 0)
    assert run_labels(here).items() & run_labels(there).items() == set()


def test_metadata_tells_run_number_and_people() -> None:
    annotations = made()["metadata"]["annotations"]
    assert annotations["raybatch/number"] == "3"
    assert annotations["raybatch/fingerprint"] == "print"
    assert (annotations["raybatch/dag-id"], annotations["raybatch/task-id"]) == ("d", "t")


def test_secret_goes_with_its_rayjob() -> None:
    secret = secret_manifest(ClusterClaim("ml", "job-0", "uid-1", 0, "job-0-1a"), "ab" * 32, run_labels(KEY))
    reading = Schemas().read("Secret", secret)
    assert (reading.unknown, reading.causes) == ([], [])
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RayJob", "job-0", "uid-1")
    assert base64.b64decode(secret["data"]["auth_token"]) == b"ab" * 32
