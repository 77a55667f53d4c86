# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a Kubernetes over HTTP, asked by Kubernetes' own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes_asyncio import client, config

from tests.support.fake_ray import FakeRay
from tests.support.fake_ray import serving as ray_serving
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.credentials import tls_for, write_kubeconfig
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import WebServer, serving

RULES = [
    {
        "apiGroups": ["ray.io"],
        "resources": ["rayjobs"],
        "verbs": ["create", "get", "list", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create"]},
]
RAYJOBS = ("ray.io", "v1", "default", "rayjobs")
PATH = "/apis/ray.io/v1/namespaces/default/rayjobs"


def rayjob(name: str, **spec: object) -> Manifest:
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = ApiServer(clock=Clock(shift=-3600))
    server.access.grant("airflow", RULES, namespace="default", token="t", expires=server.clock.now() + 600)
    with serving(server) as found:
        yield found


@pytest.fixture
async def http(web: WebServer) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": "Bearer t"}
    async with aiohttp.ClientSession(web.url, headers=headers) as session:
        yield session


async def answered(
    session: aiohttp.ClientSession, method: str, path: str, **given: Any
) -> tuple[int, Manifest]:
    async with session.request(method, path, **given) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_the_clients_of_kubernetes_over_tls(tmp_path: Path) -> None:
    server = ApiServer()
    server.access.grant("airflow", RULES, namespace="default", token="t")
    tls, authority = tls_for(tmp_path)
    with serving(server, tls=tls) as web:
        path = write_kubeconfig(tmp_path / "config", web.url, token="t", authority=authority)
        api_client = await config.new_client_from_config(str(path))
        async with api_client:
            api = client.CustomObjectsApi(api_client)
            made = await api.create_namespaced_custom_object(
                *RAYJOBS, rayjob("a", jobId="x"), field_validation="Strict"
            )
            listed = await api.list_namespaced_custom_object(*RAYJOBS, label_selector="!run", limit=1)
            only = client.V1Preconditions(uid=made["metadata"]["uid"])
            options = client.V1DeleteOptions(propagation_policy="Foreground", preconditions=only)
            deleted = await api.delete_namespaced_custom_object(*RAYJOBS, "a", body=options)
            with pytest.raises(client.ApiException) as caught:
                await client.CoreV1Api(api_client).read_namespaced_secret("s", "default")
    assert [found["spec"]["jobId"] for found in listed["items"]] == ["x"]
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert caught.value.status == 403
    assert "cannot get resource" in json.loads(caught.value.body)["message"]


async def test_refusals_are_status_objects(http: aiohttp.ClientSession, web: WebServer) -> None:
    strict = f"{PATH}?fieldValidation=Strict"
    code, body = await answered(http, "POST", strict, json=rayjob("a", surplus=1))
    assert (code, body["kind"], body["reason"]) == (400, "Status", "BadRequest")
    async with http.post(PATH, json=rayjob("a", surplus=1)) as answer:
        assert (answer.status, answer.headers["Warning"]) == (201, '299 - "unknown field \\"spec.surplus\\""')
        date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    assert date == pytest.approx(web.server.clock.now(), abs=30)
    merge = {"Content-Type": "application/merge-patch+json"}
    other = json.dumps({"metadata": {"uid": "x"}})
    code, body = await answered(http, "PATCH", f"{PATH}/a", data=other, headers=merge)
    assert (code, body["details"]["causes"][0]["field"]) == (422, "metadata.uid")
    async with http.get("/apis/ray.io/v2/namespaces/default/rayjobs") as answer:
        assert (answer.status, await answer.text()) == (404, "404 page not found\n")
    web.server.clock.advance(601)
    assert (await answered(http, "GET", PATH))[0] == 401


async def test_the_proxy_keeps_the_login_to_itself(http: aiohttp.ClientSession, web: WebServer) -> None:
    server, proxy = web.server, "/api/v1/namespaces/default/services/http:head:8265/proxy"
    assert (await answered(http, "GET", f"{proxy}/api/version"))[0] == 404
    spec = {"ports": [{"name": "dashboard", "port": 8265}]}
    head = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "head"}, "spec": spec}
    server.create(server.admin, "Service", "default", head)
    code, body = await answered(http, "GET", f"{proxy}/api/version")
    assert (code, body["message"]) == (503, 'no endpoints available for service "head"')
    with ray_serving(FakeRay()) as ray:
        server.endpoints["default", "head", "8265"] = ray.url.removeprefix("http://")
        headers = {"X-Ray-Authorization": "Bearer ray"}
        code, body = await answered(http, "GET", f"{proxy}/api/version?x=1", headers=headers)
    assert (code, body["ray_version"]) == (200, "2.60.0")
    assert "authorization" not in ray.headers[0]
    assert ray.headers[0]["x-ray-authorization"] == "Bearer ray"
    code, body = await answered(http, "GET", f"{proxy}/api/version")
    assert (code, "connection refused" in body["message"]) == (503, True)


async def test_a_lost_answer_is_a_broken_connection(http: aiohttp.ClientSession, web: WebServer) -> None:
    web.server.faults.stage(verb="create", lost="after")
    web.server.faults.stage(verb="get", code=429)
    with pytest.raises(aiohttp.ClientConnectionError):
        await answered(http, "POST", PATH, json=rayjob("a"))
    async with http.get(f"{PATH}/a") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    assert (await answered(http, "GET", f"{PATH}/a"))[0] == 200
