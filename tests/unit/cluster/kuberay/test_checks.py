# SPDX-License-Identifier: Apache-2.0
"""Each mistake of a DAG's author is one sentence with the argument, its value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import looks_secret
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.approved import AssertSentences

IMAGE = "registry/team/ray:2.60.0"
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}
SPEC = {"rayVersion": "2.60.0", "headGroupSpec": HEAD}


def test_a_mistake_is_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **given: KubeRayCluster(**({"image": IMAGE} | given if given else {})), SpecError)


@pytest.mark.parametrize(
    ("name", "remedy"), [("GPU_PER_WORKER", "did you mean 'gpus_per_worker'?"), ("x", "known are image, ")]
)
def test_a_misspelt_argument_is_one_sentence(name: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        KubeRayCluster(**{"image": IMAGE, name: 1})
    assert str(caught.value).startswith(f"{name}: it is not an argument of KubeRayCluster; {remedy}")


@pytest.mark.parametrize("place", ["spec", "patch", "pod_override"])
def test_secrets_in_manifests_are_refused(place: str) -> None:
    variable = {"name": "AWS_SECRET_ACCESS_KEY", "value": "geheim"}
    pod = {"spec": {"containers": [{"name": "ray-head", "image": IMAGE, "env": [variable]}]}}
    given = {} if place == "spec" else {"image": IMAGE}
    content = pod if place == "pod_override" else {"rayVersion": "2.60.0", "headGroupSpec": {"template": pod}}
    with pytest.raises(SpecError, match=f"^{place}: AWS_SECRET_ACCESS_KEY looks like a secret") as caught:
        KubeRayCluster(**given, **{place: content})
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
        ("secretProviderClass", "vault", False),
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
        {"image": IMAGE, "pod_override": {"spec": {"serviceAccountName": "{{ params.account }}"}}},
        {"name": "{{ params.cluster }}"},
        {"spec": "{{ params.file }}"},
        {"image": "x:latest", "ray_version": "{{ params.ray }}"},
        {"image": IMAGE, "namespace": "[[ params.team ]]"},
        {"name": "shared", "namespace": "ml", "dashboard_address": "proxy", "cluster_wait": 60},
        {"image": IMAGE, "dashboard_address": "https://ray.example.com/{namespace}/{cluster}"},
        {"image": "host:5000/ray:nightly", "ray_version": "2.60.0"},
        {"image": "ray:2.60.0-py312@sha256:" + "a" * 64},
    ],
)
def test_what_may_be_right_is_accepted(arguments: dict[str, Any]) -> None:
    assert KubeRayCluster(**arguments).given == arguments


def test_known_items_are_judged_beside_templates() -> None:
    with pytest.raises(SpecError, match=r"^annotations: api-token looks like a secret"):
        KubeRayCluster(image=IMAGE, annotations={"api-token": "geheim", "A": "{{ ds }}"})
