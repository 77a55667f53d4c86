# SPDX-License-Identifier: Apache-2.0
"""The client against a stand-in for a Kubernetes over HTTP: objects, conflicts, rights, clocks, credentials.

Each case also runs on the stand-in's own client without HTTP, which other tests use: both answer alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.kubernetes.api import errors
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.server import pod_server
from tests.support.kubernetes.access import Webhook
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.credentials import tls_for, write_service_account
from tests.support.kubernetes.kinds import RESOURCES
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import WebServer, serving

HEAD = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "i"}]}}}
SPEC = {"submissionMode": "InteractiveMode", "rayClusterSpec": {"headGroupSpec": HEAD}}


def rayjob(name: str = "a", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"raybatch/run": "r"}}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": SPEC | spec}


class Pod:
    """A process in a pod, whose API server is a stand-in over TLS."""

    def __init__(self, web: WebServer) -> None:
        self.kubernetes, self.web = web.server, web

    def api(self, way: str) -> KubernetesClient:
        if way == "memory":
            return MemoryKubernetes(self.kubernetes)
        found = pod_server()
        assert found is not None
        return KubernetesClient(found)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    context, authority = tls_for(tmp_path)
    kubernetes = ApiServer(clock=Clock(start=1_700_000_000))
    with serving(kubernetes, tls=context) as web:
        kubernetes.access.grant("pod", token="pod-token")
        folder = write_service_account(tmp_path / "account", "pod-token", authority)
        monkeypatch.setattr("airflow_provider_raybatch.kubernetes.api.server.FOLDER", folder)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(web.port))
        yield Pod(web)


@pytest.fixture(params=["http", "memory"])
async def api(pod: Pod, request: pytest.FixtureRequest) -> AsyncIterator[KubernetesClient]:
    async with pod.api(request.param) as entered:
        yield entered


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_workloads_are_listed_in_the_version_that_is_there(
    api: KubernetesClient, pod: Pod, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.NoSuchKindError):
        await api.list("Workload")
    pod.kubernetes.served.add("Workload")
    monkeypatch.setitem(RESOURCES, "Workload", replace(RESOURCES["Workload"], version=version))
    assert await api.list("Workload") == []


async def test_the_first_to_create_has_it(api: KubernetesClient) -> None:
    made = await api.create(rayjob())
    assert made["metadata"]["uid"]
    assert made["spec"]["submissionMode"] == "InteractiveMode"
    with pytest.raises(errors.ObjectExistsError):
        await api.create(rayjob())
    again = await api.get("RayJob", "a")
    assert again is not None
    assert again["metadata"]["uid"] == made["metadata"]["uid"]
    assert await api.get("RayJob", "b") is None


async def test_a_patch_is_for_one_object_and_state(api: KubernetesClient) -> None:
    made = await api.create(rayjob())
    metadata = made["metadata"]
    changed = await api.patch("RayJob", "a", {"metadata": {"uid": metadata["uid"]}, "spec": {"jobId": "x"}})
    assert changed is not None
    assert (changed["spec"]["jobId"], changed["spec"]["submissionMode"]) == ("x", "InteractiveMode")
    for seen in {"uid": "another"}, {"resourceVersion": metadata["resourceVersion"]}:
        with pytest.raises(errors.ChangedObjectError):
            await api.patch("RayJob", "a", {"metadata": seen, "spec": {"jobId": "y"}})
    assert await api.patch("RayJob", "b", {"spec": {"jobId": "y"}}) is None


async def test_a_delete_is_for_one_object(api: KubernetesClient) -> None:
    made = await api.create(rayjob())
    with pytest.raises(errors.ChangedObjectError):
        await api.delete("RayJob", "a", uid="another")
    assert await api.delete("RayJob", "a", uid=made["metadata"]["uid"])
    assert not await api.delete("RayJob", "b", uid="u")


async def test_what_the_server_refuses_is_the_users_error(api: KubernetesClient, pod: Pod) -> None:
    with pytest.raises(errors.InvalidObjectError, match=r'unknown field "spec\.preRunningDeadline"'):
        await api.create(rayjob(preRunningDeadline=1))
    with pytest.raises(errors.InvalidObjectError, match="activeDeadlineSeconds"):
        await api.create(rayjob(activeDeadlineSeconds="soon"))
    pod.kubernetes.access.webhooks.append(Webhook("policy", lambda verb, manifest: "no GPUs at night"))
    with pytest.raises(errors.ForbiddenError, match="no GPUs at night"):
        await api.create(rayjob())


async def test_a_quota_may_have_room_again(api: KubernetesClient, pod: Pod) -> None:
    pod.kubernetes.access.quotas["default", "count/rayjobs.ray.io"] = 0
    with pytest.raises(errors.QuotaExceededError, match="exceeded quota") as found:
        await api.create(rayjob())
    assert found.value.failure_class.retryable
    assert await api.list("RayJob") == []


async def test_time_is_the_servers(api: KubernetesClient) -> None:
    await api.list("RayJob")
    assert abs(api.now() - 1_700_000_000) < 60


async def test_many_clients_share_their_connections(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred tasks of a triggerer ask at once; their server never has more than 32 requests to answer.

    They are counted while the server answers none. Connections may be some more than 32: a pause of this
    process ends idle ones, and others take their places.
    """
    handler = pod.web._http.RequestHandlerClass
    setup, answer = handler.setup, handler._answer
    full, may_answer = threading.Event(), threading.Event()
    connections: list[Any] = []
    asked: list[Any] = []

    def connected(self: Any) -> None:
        connections.append(self)
        setup(self)

    def held(self: Any, *request: Any) -> Any:
        asked.append(request)
        if len(asked) >= 32:
            full.set()
        assert may_answer.wait(60)
        return answer(self, *request)

    monkeypatch.setattr(handler, "setup", connected)
    monkeypatch.setattr(handler, "_answer", held)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pod.api("http")) for _ in range(200)]
        looks = asyncio.gather(*(client.get("RayJob", "a") for client in clients))
        try:
            assert await asyncio.to_thread(full.wait, 30)
            await asyncio.sleep(0.5)
            assert len(asked) == 32
        finally:
            may_answer.set()
        assert await looks == [None] * 200
        for client in clients:
            await client.get("RayJob", "a")
    assert len(asked) == 400
    assert len(connections) < 200
