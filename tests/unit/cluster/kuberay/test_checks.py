# SPDX-License-Identifier: Apache-2.0
"""Each mistake of a DAG's author is one sentence with the argument, its value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import looks_secret
from airflow_provider_raybatch.contract.failures import SpecError

IMAGE = "registry/team/ray:2.60.0"
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}
SPEC = {"rayVersion": "2.60.0", "headGroupSpec": HEAD}

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "image: a value is needed to make a cluster; name an image with Ray, or give name or spec."),
    ({"image": "a b"}, "image: 'a b' is not an image; name it as in 'registry/name:tag'."),
    (
        {"image": "x:latest"},
        "ray_version: the image 'x:latest' does not tell its version of Ray; give it, such as",
    ),
    (
        {"image": "rayproject/ray:2.52.0"},
        "ray_version: '2.52.0' is too old; use an image with Ray 2.56 or newer.",
    ),
    ({"ray_version": 2.6}, "ray_version: 2.6 is not a version of Ray; give it as text, such as '2.60.0'."),
    ({"ray_version": "nightly"}, "ray_version: 'nightly' is not a version of Ray"),
    ({"name": "x" * 54}, "is too long by 1; shorten it, since Kubernetes takes at most 53 here."),
    (
        {"name": "1st", "image": None},
        "name: '1st' is not a name that Kubernetes takes here; use lower-case letters",
    ),
    ({"name": "Größe", "image": None}, "name: 'Größe' is not a name that Kubernetes takes here"),
    (
        {"name": "shared"},
        "name: 'shared' is a running cluster, which image can't change; remove image, or name.",
    ),
    (
        {"name": "s", "image": None, "workers": 2},
        "name: 's' is a running cluster, which workers can't change",
    ),
    ({"namespace": "a_b"}, "namespace: 'a_b' is not a name that Kubernetes takes here"),
    ({"namespace": "a" * 64}, "is too long by 1; shorten it, since Kubernetes takes at most 63 here."),
    ({"namespace": 5}, "namespace: 5 is not text; give a name as text."),
    ({"service_account": "a b"}, "service_account: 'a b' is not a name"),
    ({"service_account": "a" * 51}, "is too long by 1; shorten it, since KubeRay takes at most 50 here."),
    ({"service_account": "1a"}, "service_account: '1a' is not a name that KubeRay takes here; use"),
    ({"kueue_queue": "Queue"}, "kueue_queue: 'Queue' is not a name"),
    ({"labels": {"team": "a b"}}, "labels: team: 'a b' is not a name"),
    ({"labels": {"a b": "x"}}, "labels: 'a b' is not a name"),
    (
        {"labels": {"raybatch/run": "x"}},
        "labels: 'raybatch/run' would hide the cluster from its own task; use",
    ),
    ({"labels": "team"}, "labels: it must be a dictionary, but it is 'team'."),
    ({"annotations": {"a": 1}}, "annotations: a: 1 is not text; give it as text."),
    ({"annotations": {"note": "hf_" + "a" * 30}}, "annotations: note: it looks like a secret, and a RayJob"),
    ({"workers": (3, 1)}, "workers: the fewest, 3, are more than the most, 1; exchange them."),
    ({"workers": -1}, "workers: it must be at least 0, but it is -1."),
    ({"workers": (0, 1, 2)}, "workers: (0, 1, 2) is not (fewest, most); give two numbers, or one."),
    ({"workers": 1.5}, "workers: it must be a whole number, but it is 1.5."),
    ({"workers": True}, "workers: it must be a whole number, but it is True."),
    ({"cpu_workers": "many"}, "cpu_workers: it must be a whole number, but it is 'many'."),
    ({"gpus_per_worker": 99}, "gpus_per_worker: 99 is not a number of GPUs of a node; give 0 to 16."),
    (
        {"gpus_per_worker": 0, "workers": 2},
        "gpus_per_worker: it is 0, and workers is about workers with GPUs",
    ),
    (
        {"gpus_per_worker": 0, "accelerator_type": "L4"},
        "gpus_per_worker: it is 0, and accelerator_type is about",
    ),
    ({"accelerator_type": "h100"}, "accelerator_type: Ray calls 'h100' 'H100'; write it so."),
    (
        {"accelerator_type": "TPU-V6E"},
        "accelerator_type: workers with 'TPU-V6E' can't be made of arguments; give",
    ),
    ({"accelerator_type": 5}, "accelerator_type: 5 is not text; give it as Ray names it."),
    ({"cpus_per_worker": 0}, "cpus_per_worker: 0 is not a number of CPUs; give one such as 4 or '500m'."),
    (
        {"memory_per_worker": "64GB"},
        "memory_per_worker: '64GB' is not an amount of memory; give one with a unit",
    ),
    ({"memory_per_worker": 64}, "memory_per_worker: 64 is not an amount of memory"),
    ({"head": {"cpu": 2}}, "head: 'cpu' is unknown; known are cpus, memory, node_selector, tolerations."),
    ({"head": {"memory": "8"}}, "head: memory: '8' is not an amount of memory"),
    ({"head": 4}, "head: it must be a dictionary with cpus and memory, but it is 4."),
    ({"cloud": "gcp"}, "cloud: 'gcp' is unknown; use one of 'gke', 'eks', 'eks-auto', 'aks'."),
    (
        {"cloud": "eks", "accelerator_type": "RTX-PRO-6000"},
        "cloud: no label of 'eks' nodes is known for the accelerator 'RTX-PRO-6000'; give node_selector.",
    ),
    (
        {"tolerations": [{"taint": "x"}]},
        "tolerations: {'taint': 'x'} is not a toleration; known fields are key",
    ),
    (
        {"env": {"HF_TOKEN": "hf_x"}},
        "env: HF_TOKEN looks like a secret, and a RayJob can be read by many; put it",
    ),
    ({"env": {"RAY_AUTH_TOKEN": "x"}}, "env: RAY_AUTH_TOKEN is set for each cluster; remove it."),
    ({"env": {"1A": "x"}}, "env: '1A' is not a name"),
    ({"env": {"A": ["x"]}}, "env: A: a list is not text; give it as text."),
    ({"env": {"A": {"secretRef": {}}}}, "env: A: its value must be text or one of secretKeyRef"),
    ({"env": {"A": {"secretKeyRef": {"name": "n"}}}}, "env: A: secretKeyRef needs a key; give it."),
    ({"volumes": [{"mountPath": "/m"}]}, "volumes: {'mountPath': '/m'} has no name; give name, mountPath"),
    (
        {"volumes": [{"name": "m", "mountPath": "m", "emptyDir": {}}]},
        "volumes: m: mountPath 'm' is not a folder",
    ),
    ({"volumes": [{"name": "m", "mountPath": "/m"}]}, "volumes: m: it needs one kind, such as"),
    (
        {"volumes": [{"name": "shared-mem", "mountPath": "/m", "emptyDir": {}}]},
        "is the name of another volume",
    ),
    ({"image_pull_secrets": "pull"}, "image_pull_secrets: it must be a list of names, but it is 'pull'."),
    (
        {"image_pull_policy": "always"},
        "image_pull_policy: 'always' is unknown; use one of 'Always', 'IfNotPresent'",
    ),
    (
        {"dashboard_address": "ray.example.com"},
        "dashboard_address: 'ray.example.com' is not an address; use 'auto'",
    ),
    (
        {"dashboard_address": "https://r/{name}"},
        "has other braces than {namespace}, {cluster} and {service}; remove them.",
    ),
    ({"cluster_wait": 0}, "cluster_wait: it must be more than 0 seconds, but it is 0."),
    ({"ttl_after_finished": -1}, "ttl_after_finished: it must be at least 0 seconds, but it is -1."),
    ({"kubernetes_conn_id": " "}, "kubernetes_conn_id: ' ' is not text; give it as text."),
    ({"patch": {"authOptions": {}}}, "patch: authOptions: each cluster gets a token of its own; remove it."),
    (
        {"patch": {"spec": {}}},
        "patch: it is merged over the RayCluster's spec; give what stands inside of spec.",
    ),
    (
        {"spec": SPEC, "image": None, "env": {"A": "b"}},
        "spec: it decides what env would; remove env, or write it",
    ),
    ({"spec": SPEC, "image": None, "workers": 1}, "spec: it decides what workers would; remove workers"),
    (
        {"kueue_queue": "a", "labels": {"kueue.x-k8s.io/queue-name": "b"}},
        "kueue_queue: it is 'a', and labels have the queue 'b'; keep one.",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_a_mistake_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(**({"image": IMAGE} | arguments if arguments else {}))
    assert sentence in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "remedy"), [("GPU_PER_WORKER", "did you mean 'gpus_per_worker'?"), ("x", "known are image, ")]
)
def test_a_misspelt_argument_is_one_sentence(name: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(**{"image": IMAGE, name: 1})
    assert str(caught.value).startswith(f"{name}: it is not an argument of KubeRayCluster; {remedy}")


def test_a_refused_secret_is_not_in_the_sentence() -> None:
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(image=IMAGE, env={"DB": "postgresql://user:geheim@host/db"})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("place", ["spec", "patch"])
def test_secrets_in_manifests_are_refused(place: str) -> None:
    variable = {"name": "AWS_SECRET_ACCESS_KEY", "value": "geheim"}
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE, "env": [variable]}]}}}
    given = {"image": IMAGE} if place == "patch" else {}
    with pytest.raises(SpecError, match=f"^{place}: AWS_SECRET_ACCESS_KEY looks like a secret") as caught:
        KubeRayCluster(**given, **{place: {"rayVersion": "2.60.0", "headGroupSpec": head}})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP", True),
        ("OPENAI_API_KEY", "x", True),
        ("ANYTHING", "hf_abcdefghijklmnopqrstuvwxyz", True),
        ("dbPassword", "x", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token", False),
        ("MAX_TOKENS", "512", False),
        ("HF_HOME", "/models", False),
        ("PROXY", "http://proxy:3128", False),
    ],
)
def test_secrets_are_told_by_name_and_value(name: str, value: str, secret: bool) -> None:
    assert looks_secret(name, value) is secret


@pytest.mark.parametrize(
    "arguments",
    [
        {"image": "{{ params.image }}"},
        {"image": IMAGE, "workers": "{{ params.most }}"},
        {"image": IMAGE, "annotations": {"vault.hashicorp.com/agent-inject-secret-db": "kv/db"}},
        {"image": IMAGE, "labels": {"team": "{{ dag.owner }}"}},
        {"image": IMAGE, "env": {"A": "{{ ds }}", "HF_TOKEN": {"secretKeyRef": {"name": "n", "key": "k"}}}},
        {"name": "{{ params.cluster }}"},
        {"spec": "{{ params.file }}"},
        {"image": "x:latest", "ray_version": "{{ params.ray }}"},
        {"name": "shared", "namespace": "ml", "dashboard_address": "proxy", "cluster_wait": 60},
        {"image": IMAGE, "dashboard_address": "https://ray.example.com/{namespace}/{cluster}"},
        {"image": "host:5000/ray:nightly", "ray_version": "2.60.0"},
        {"image": "ray:2.60.0-py312@sha256:" + "a" * 64},
    ],
)
def test_what_may_be_right_is_accepted(arguments: dict[str, Any]) -> None:
    assert KubeRayCluster(**arguments).given == arguments


def test_known_items_are_judged_beside_templates() -> None:
    with pytest.raises(SpecError, match=r"^env: HF_TOKEN looks like a secret"):
        KubeRayCluster(image=IMAGE, env={"HF_TOKEN": "x", "A": "{{ ds }}"})
