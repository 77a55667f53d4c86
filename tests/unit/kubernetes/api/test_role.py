# SPDX-License-Identifier: Apache-2.0
"""The Role that is written out: everything that is asked is allowed by it, and each of its verbs is used."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import airflow_provider_raybatch
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import AuthenticationError
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.kubernetes.api.client import _RESOURCES, KubernetesClient
from airflow_provider_raybatch.kubernetes.api.errors import ROLE_FILE, ForbiddenError
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.kubernetes.api.server import ApiServer as Server
from airflow_provider_raybatch.kubernetes.kuberay.reach import cluster_address
from tests.support.fake_ray import FakeRay
from tests.support.fake_ray import serving as serving_ray
from tests.support.kubernetes.credentials import write_kubeconfig
from tests.support.kubernetes.role import (
    BY_NAME,
    KUEUE,
    LEASED_CLUSTERS,
    OPERATIONS,
    PROXY,
    Operation,
    role_rules,
)
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import serving

ROOT = Path(airflow_provider_raybatch.__file__).parents[1]
RULES = role_rules(PROXY, BY_NAME, LEASED_CLUSTERS, KUEUE, secret="shared")
ONCE = RetryPolicy(attempts=1)
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "made"}}
HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "i"}]}}}
SPEC = {"submissionMode": "InteractiveMode", "rayClusterSpec": {"headGroupSpec": HEAD}}
RAYJOB = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "made"}, "spec": SPEC}

Ask = Callable[[KubernetesClient, RayJobsClient], Awaitable[Any]]
ASKED: dict[tuple[str, str], Ask] = {
    ("create", "rayjobs"): lambda api, ray: api.create(RAYJOB),
    ("get", "rayjobs"): lambda api, ray: api.get("RayJob", "job"),
    ("list", "rayjobs"): lambda api, ray: api.list("RayJob"),
    ("patch", "rayjobs"): lambda api, ray: api.patch("RayJob", "job", {"spec": {"jobId": "x"}}),
    ("delete", "rayjobs"): lambda api, ray: api.delete("RayJob", "job"),
    ("get", "rayclusters"): lambda api, ray: api.get("RayCluster", "cluster"),
    ("list", "rayclusters"): lambda api, ray: api.list("RayCluster"),
    ("create", "secrets"): lambda api, ray: api.create(SECRET),
    ("list", "pods"): lambda api, ray: api.list("Pod"),
    ("list", "events"): lambda api, ray: api.list("Event"),
    ("get", "services/proxy"): lambda api, ray: ray.version(),
    ("create", "services/proxy"): lambda api, ray: ray.submit(JobRequest("true", "id-1")),
    ("update", "services/proxy"): lambda api, ray: ray.upload_package("gcs://_ray_pkg_1.zip", b"zip"),
    ("get", "secrets"): lambda api, ray: api.get("Secret", "shared"),
    ("list", "workloads"): lambda api, ray: api.list("Workload"),
}  # fmt: skip


def test_the_role_in_the_docs_is_the_code_s() -> None:
    role, _ = yaml.safe_load_all((ROOT / ROLE_FILE).read_text())
    assert role["kind"] == "Role"
    assert role["rules"] == RULES


def test_every_operation_is_asked_here() -> None:
    assert {(one.verb, one.resource) for one in OPERATIONS} == set(ASKED)


def _without(operation: Operation) -> list[dict[str, Any]]:
    rules = []
    for rule in RULES:
        same = (rule["apiGroups"], rule["resources"]) == ([operation.group], [operation.resource])
        verbs = [verb for verb in rule["verbs"] if not same or verb != operation.verb]
        rules.append({**rule, "verbs": verbs})
    return rules


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.verb} {one.resource}")
async def test_each_verb_is_needed_and_enough(operation: Operation, tmp_path: Path) -> None:
    ask = ASKED[operation.verb, operation.resource]
    kubernetes = ApiServer(kueue=True)
    kubernetes.create(kubernetes.admin, "RayJob", "default", {**RAYJOB, "metadata": {"name": "job"}})
    kubernetes.create(kubernetes.admin, "Secret", "default", {**SECRET, "metadata": {"name": "shared"}})
    kubernetes.create(kubernetes.admin, "Service", "default", SERVICE)
    with serving_ray(FakeRay("ray-token")) as ray, serving(kubernetes) as web:
        kubernetes.endpoints["default", "c-head-svc", "8265"] = ray.url.removeprefix("http://")
        for name, rules in ("bare", _without(operation)), ("whole", RULES):
            kubernetes.access.grant(name, rules, namespace="default", token=name)
            path = write_kubeconfig(tmp_path / name, web.url, token=name)
            server = kubeconfig_server(Kubeconfig(str(path)))
            async with KubernetesClient(server, retries=ONCE) as api, _jobs(server) as jobs:
                if name == "whole":
                    await ask(api, jobs)
                else:
                    with pytest.raises(
                        (ForbiddenError, AuthenticationError),
                        match=f"{operation.verb}.*{operation.resource}.*{ROLE_FILE}",
                    ):
                        await ask(api, jobs)


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "c-head-svc"},
    "spec": {"ports": [{"name": "dashboard", "port": 8265}]},
}


def _jobs(server: Server) -> RayJobsClient:
    return RayJobsClient(
        cluster_address(server, {"metadata": {"name": "c"}}, "ray-token", "proxy"), retries=ONCE
    )


def test_the_package_asks_for_nothing_else() -> None:
    """Every call of a `KubernetesApi` with a literal kind is one of the Role's operations."""
    allowed = {(one.verb, one.resource) for one in OPERATIONS}
    found = set()
    for path in (ROOT / "airflow_provider_raybatch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                verb, kind = node.func.attr, getattr(node.args[0], "value", None)
                if verb in {"get", "list", "patch", "delete"} and kind in _RESOURCES:
                    found.add((verb, _RESOURCES[kind][1]))
    assert found <= allowed
    creates = {("create", "rayjobs"), ("create", "secrets")}
    proxied = {one for one in allowed if one[1] == "services/proxy"}
    assert allowed - found == creates | proxied
