# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a Kubernetes refuses what Kubernetes refuses, so that other tests don't lie."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.kubernetes.api import errors
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.garbage import collect_all
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.memory import MemoryKubernetes, set_status
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.server import ApiServer

KEPT = {"onSuccess": {"policy": "Keep"}, "onFailure": {"policy": "DeleteNone"}}


def rayjob(name: str = "job-1", **spec: object) -> Manifest:
    head = {
        "rayStartParams": {},
        "template": {"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}},
    }
    body = {"submissionMode": "InteractiveMode", "rayClusterSpec": {"headGroupSpec": head}, **spec}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": body}


def secret(name: str, owner: Manifest | None = None, *, blocks: bool = False) -> Manifest:
    made: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "stringData": {"a": "b"},
    }
    if owner is not None:
        ref = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "blockOwnerDeletion": blocks}
        made["metadata"]["ownerReferences"] = [ref | {key: owner["metadata"][key] for key in ("name", "uid")}]
    return made


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(clock=Clock(start=1_700_000_000))


@pytest.fixture
def api(server: ApiServer) -> MemoryKubernetes:
    return MemoryKubernetes(server)


async def test_what_is_not_there(api: MemoryKubernetes, server: ApiServer) -> None:
    assert await api.patch("RayJob", "job-1", {"spec": {}}) is None
    assert await api.delete("RayJob", "job-1") is False
    elsewhere = MemoryKubernetes(server, namespace="missing")
    assert await elsewhere.list("RayJob") == []
    with pytest.raises(errors.NoSuchKindError, match='namespaces "missing" not found'):
        await elsewhere.create(rayjob())
    with pytest.raises(errors.NoSuchKindError, match="404 page not found"):
        await MemoryKubernetes(ApiServer(kuberay="")).list("RayJob")


async def test_status_is_written_apart_from_the_rest(api: MemoryKubernetes, server: ApiServer) -> None:
    await api.create({**rayjob(), "status": {"jobDeploymentStatus": "Complete"}})
    set_status(server, "RayJob", "job-1", {"jobDeploymentStatus": "Waiting"})
    found = await api.patch("RayJob", "job-1", {"status": {"jobDeploymentStatus": "Complete"}})
    assert found is not None
    assert (found["status"], found["metadata"]["generation"]) == (
        {"jobDeploymentStatus": "Waiting", "failed": 0, "succeeded": 0},
        1,
    )


async def test_foreground_deletion_waits_for_what_blocks(api: MemoryKubernetes, server: ApiServer) -> None:
    made = await api.create(rayjob())
    for name, blocks in (("free", False), ("blocking", True)):
        manifest = secret(name, made, blocks=blocks)
        manifest["metadata"]["finalizers"] = ["test/held"]
        await api.create(manifest)
    assert await api.delete("RayJob", "job-1", uid=made["metadata"]["uid"])
    for name, left in (("free", True), ("blocking", False)):
        found = await api.get("RayJob", "job-1")
        assert found is not None
        assert found["metadata"]["finalizers"] == ["foregroundDeletion"]
        await api.patch("Secret", name, {"metadata": {"finalizers": None}})
        assert (await api.get("RayJob", "job-1") is not None) is left
    assert await api.list("Secret") == []


async def test_background_deletion_takes_what_is_owned(api: MemoryKubernetes, server: ApiServer) -> None:
    made = await api.create(rayjob())
    await api.create(secret("owned", made))
    await api.create(secret("free"))
    server.delete(server.admin, "RayJob", "default", "job-1")
    assert [found["metadata"]["name"] for found in server.store.all("Secret")] == ["free", "owned"]
    collect_all(server.store)
    assert [found["metadata"]["name"] for found in server.store.all("Secret")] == ["free"]


async def test_an_owner_that_is_gone_takes_the_late_secret(api: MemoryKubernetes) -> None:
    made = await api.create(rayjob())
    await api.delete("RayJob", "job-1")
    await api.create(secret("late", made))
    assert await api.get("Secret", "late") is None


@pytest.mark.parametrize(
    ("kuberay", "message"),
    [
        ("1.5.2", r'strict decoding error: unknown field "spec.preRunningDeadlineSeconds"'),
        ("1.6.2", "spec.preRunningDeadlineSeconds in body should be greater than or equal to 1"),
    ],
)
async def test_fields_by_version(kuberay: str, message: str) -> None:
    api = MemoryKubernetes(ApiServer(kuberay))
    with pytest.raises(errors.InvalidObjectError, match=message):
        await api.create(rayjob(preRunningDeadlineSeconds=0))


async def test_a_misspelt_field_of_a_pod(api: MemoryKubernetes) -> None:
    job = rayjob()
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imag"] = "ray"
    with pytest.raises(errors.InvalidObjectError, match=r'unknown field ".*containers\[0\].imag"'):
        await api.create(job)


def test_unknown_fields_are_pruned_unless_strict(server: ApiServer) -> None:
    made, warnings = server.create(server.admin, "RayJob", "default", rayjob(surplus=1))
    assert (warnings, "surplus" in made["spec"]) == (['unknown field "spec.surplus"'], False)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (rayjob(activeDeadlineSeconds="9"), 'must be of type integer: "string"'),
        (rayjob(rayClusterSpec={}), "spec.rayClusterSpec.headGroupSpec: Required value"),
        (rayjob(deletionStrategy=KEPT), 'Unsupported value: "Keep": supported values: "DeleteCluster"'),
        (rayjob("Größe"), 'metadata.name: Invalid value: "Größe": a lowercase RFC 1123 subdomain'),
        ({**rayjob(), "metadata": {"name": "a", "labels": {"raybatch/run": "x" * 64}}}, "63 characters"),
        ({**secret("s"), "data": {"c": "?"}}, "illegal base64 data"),
    ],
)
async def test_wrong_values(api: MemoryKubernetes, manifest: Manifest, message: str) -> None:
    with pytest.raises(errors.InvalidObjectError, match=message):
        await api.create(manifest)


async def test_a_role_allows_what_it_names(api: MemoryKubernetes, server: ApiServer) -> None:
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["one"]},
    ]
    limited = MemoryKubernetes(server, user=server.access.grant("airflow", rules, namespace="default"))
    await limited.create(rayjob())
    assert len(await limited.list("RayJob")) == 1
    assert await limited.get("Secret", "one") is None
    with pytest.raises(errors.ForbiddenError) as caught:
        await limited.delete("RayJob", "job-1")
    assert str(caught.value) == (
        'rayjobs.ray.io "job-1" is forbidden: User "airflow" cannot delete resource "rayjobs" in API group '
        '"ray.io" in the namespace "default"'
    )
    with pytest.raises(errors.ForbiddenError):
        await limited.get("Secret", "two")
    with pytest.raises(errors.ForbiddenError):
        await MemoryKubernetes(server, namespace="other", user=server.access.users["airflow"]).list("RayJob")


def test_a_token_expires_by_the_clock_of_the_server(server: ApiServer) -> None:
    user = server.access.grant("airflow", token="t", expires=server.clock.now() + 60)
    assert server.access.user_of("t") is user
    server.clock.advance(60)
    with pytest.raises(RefusedError, match="401"):
        server.access.user_of("t")


async def test_a_lost_answer_comes_after_the_act(api: MemoryKubernetes, server: ApiServer) -> None:
    server.faults.stage(verb="create", kind="RayJob", lost="before")
    server.faults.stage(verb="create", kind="RayJob", lost="after")
    for there in (False, True):
        with pytest.raises(errors.KubernetesUnreachableError):
            await api.create(rayjob())
        assert (await api.get("RayJob", "job-1") is not None) is there


async def test_lists_by_labels_and_fields_over_pages(api: MemoryKubernetes) -> None:
    for number in range(5):
        manifest = rayjob(f"job-{number}")
        manifest["metadata"]["labels"] = {"run": "a" if number else "b", "n": str(number)}
        await api.create(manifest)
    names = {"run=a": 4, "run!=a": 1, "n in (1, 2),run": 2, "n notin (1,2)": 3, "!run": 0}
    assert {selector: len(await api.list("RayJob", labels=selector)) for selector in names} == names
    assert len(await api.list("RayJob", fields="metadata.name=job-3")) == 1
    with pytest.raises(errors.InvalidObjectError, match=r"field label not supported: spec.jobId"):
        await api.list("RayJob", fields="spec.jobId=a")
