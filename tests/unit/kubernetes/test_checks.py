# SPDX-License-Identifier: Apache-2.0
"""Each mistake of a DAG's author is one sentence with the argument, its value and the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.user_manifest import looks_secret
from tests.support.approved import AssertSentences

IMAGE = "registry/team/ray:2.60.0"
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}
SPEC = {"rayVersion": "2.60.0", "headGroupSpec": HEAD}


def test_a_mistake_is_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **given: KubeRayCluster(**({"image": IMAGE} | given if given else {})), SpecError)


def test_a_misspelt_argument_is_one_sentence() -> None:
    told = "^gpu_per_worker: it is not an argument of KubeRayCluster; known are image, .*gpus_per_worker, "
    with pytest.raises(SpecError, match=told):
        KubeRayCluster.of_arguments({"image": IMAGE, "gpu_per_worker": 1})


@pytest.mark.parametrize("place", ["spec", "pod_override"])
@pytest.mark.parametrize("value", ["geheim", "{{ var.value.key }}"])
def test_secrets_in_manifests_are_refused(place: str, value: str) -> None:
    """Also before a template is rendered, which would make a plain secret of it."""
    variable = {"name": "AWS_SECRET_ACCESS_KEY", "value": value}
    pod = {"spec": {"containers": [{"name": "ray-head", "image": IMAGE, "env": [variable]}]}}
    given = {} if place == "spec" else {"image": IMAGE}
    content = pod if place == "pod_override" else {"rayVersion": "2.60.0", "headGroupSpec": {"template": pod}}
    with pytest.raises(SpecError, match=f"^{place}: AWS_SECRET_ACCESS_KEY looks like a secret") as caught:
        KubeRayCluster(**given, **{place: content})
    assert value not in str(caught.value)


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


INJECTED = {"metadata": {"annotations": {"vault.hashicorp.com/agent-inject-secret-db": "kv/db"}}}


@pytest.mark.parametrize(
    "arguments",
    [
        {"image": "{{ params.image }}"},
        {"image": IMAGE, "workers": "{{ params.most }}"},
        {"image": IMAGE, "pod_override": INJECTED},
        {"image": IMAGE, "node_selector": {"team": "{{ dag.owner }}"}},
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


def test_json_has_what_reaches_a_cluster_again() -> None:
    made = KubeRayCluster(image=IMAGE, namespace="ml", dashboard_address="proxy")
    found = KubeRayCluster.from_json(made.to_json())
    assert found.to_json() == made.to_json()
    assert (found.namespace, found.dashboard_address, found.name) == ("ml", "proxy", None)
    shared = KubeRayCluster(name="shared", kubernetes_conn_id="other")
    assert KubeRayCluster.from_json(shared.to_json()) == shared


def test_absent_values_of_templates_count_as_not_given() -> None:
    cluster = KubeRayCluster(
        image=IMAGE,
        kueue_queue="{{ a }}",
        workers="{{ b }}",
        node_selector="{{ c }}",
        kubernetes_conn_id="{{ d }}",
    )
    cluster.kueue_queue, cluster.workers = "None", "(0, 2)"
    cluster.node_selector, cluster.kubernetes_conn_id = "{'team': 'a'}", ""
    cluster.check()
    assert cluster == KubeRayCluster(image=IMAGE, workers=(0, 2), node_selector={"team": "a"})


def test_import_loads_no_client_and_no_yaml() -> None:
    code = (
        "import sys; import airflow_provider_raybatch.kubernetes.cluster; "
        "late = ('yaml', 'kubernetes', 'kubernetes_asyncio', 'httpx', 'airflow'); "
        "print([name for name in late if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
