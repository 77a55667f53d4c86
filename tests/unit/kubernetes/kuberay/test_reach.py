# SPDX-License-Identifier: Apache-2.0
"""How the dashboard of a RayCluster is reached, and what a proxy before it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.access import Access, ClientCertificate
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AuthenticationError,
    ClusterError,
    ClusterUnreachableError,
    NotARayDashboardError,
    RequestRejectedError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.kubernetes.api.server import ApiServer as Server
from airflow_provider_raybatch.kubernetes.kuberay.reach import (
    cluster_address,
    existing_address,
    refused_by_proxy,
    token_of,
)
from tests.support.approved import AssertSentences
from tests.support.fake_ray import FakeRay, Script
from tests.support.fake_ray import serving as serving_ray
from tests.support.kubernetes.credentials import tls_for, write_kubeconfig
from tests.support.kubernetes.memory import MemoryKubernetes, set_status
from tests.support.kubernetes.role import PROXY, role_rules
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.web import WebServer, serving

PLACE = {"metadata": {"name": "c", "namespace": "jobs"}}
QUICK = RetryPolicy(attempts=2, first_wait=0.001)


class NoLogin:
    """A certificate alone says who asks."""

    identity = "none"

    async def header(self) -> str | None:
        return None

    def refused(self, header: str | None) -> None:
        return None


def known(service: str) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "status": {"head": {"serviceName": service}}}


def test_service_is_kuberays() -> None:
    assert cluster_address(server(inside=True), known("own"), "t").url == "http://own.default.svc:8265"


ACCESS = Access(NoLogin())


def server(**changes: Any) -> Server:
    return Server("https://api:6443/k8s/", ACCESS, "a test", verify="/ca.pem", **changes)


def test_auto_takes_the_service_inside_of_the_cluster() -> None:
    inside = cluster_address(server(inside=True), PLACE, "t")
    assert (inside.url, inside.token, inside.access) == ("http://c-head-svc.jobs.svc:8265", "t", None)
    assert inside.is_direct
    outside = cluster_address(server(), PLACE, "t")
    assert outside == cluster_address(server(inside=True), PLACE, "t", "proxy")
    assert outside.url == "https://api:6443/k8s/api/v1/namespaces/jobs/services/http:c-head-svc:8265/proxy"
    assert (outside.verify, outside.token) == ("/ca.pem", None)
    assert outside.request_headers()["X-Ray-Authorization"] == "Bearer t"
    assert "Authorization" not in outside.request_headers()
    assert token_of(inside) == token_of(outside) == "t"  # which tasks mask
    assert token_of(cluster_address(server(), PLACE, None)) is None


def test_untrusted_certificates_have_a_remedy_for_each_way() -> None:
    """No connection to Kubernetes has a `ca_bundle`."""
    assert "`certificate-authority`" in cluster_address(server(), PLACE, "t").ca_remedy
    assert "SSL_CERT_FILE" in cluster_address(server(), PLACE, "t", "https://ray.example.com").ca_remedy
    assert "`ca_bundle`" in ClusterAddress("https://ray.example.com").ca_remedy


def test_a_template_names_the_cluster() -> None:
    template = "https://ray.example.com/{namespace}/{cluster}/{service}"
    found = cluster_address(server(), PLACE, "t", template)
    assert found.url == "https://ray.example.com/jobs/c/c-head-svc"
    headers = found.request_headers()
    assert headers["Authorization"] == headers["X-Ray-Authorization"] == "Bearer t"
    assert "X-Ray-Authorization" not in cluster_address(server(), PLACE, None, template).request_headers()
    with pytest.raises(SpecError, match="url: 'c' is not an http"):
        cluster_address(server(), PLACE, "t", "{cluster}")


class Outside:
    """Airflow outside of a cluster: a head's dashboard behind the API server's proxy, over TLS."""

    def __init__(self, web: WebServer, ray: FakeRay, folder: Path, authority: Path) -> None:
        self.web, self.ray = web, ray
        self._folder, self._authority = folder, authority
        self.kubernetes = web.server
        ports = {"ports": [{"name": "dashboard", "port": 8265}]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c-head-svc"}, "spec": ports}
        self.kubernetes.create(self.kubernetes.admin, "Service", "default", service)
        self.point_to(ray.url)

    def point_to(self, url: str) -> None:
        self.kubernetes.endpoints["default", "c-head-svc", "8265"] = url.removeprefix("http://")

    @asynccontextmanager
    async def jobs(self, rules: Any, service: str = "c-head-svc") -> AsyncIterator[RayJobsClient]:
        self.kubernetes.access.grant("airflow", rules, namespace="default", token="api-token")
        command = ["/bin/cat", str(self._folder / "credential")]
        self.credential("api-token")
        path = write_kubeconfig(
            self._folder / "config", self.web.url, exec_command=command, authority=self._authority
        )
        found = kubeconfig_server(Kubeconfig(str(path)))
        address = cluster_address(found, known(service), self.ray.token)
        async with RayJobsClient(address, retries=QUICK) as client:
            yield client

    def credential(self, token: str) -> None:
        """What the exec plugin says from now on."""
        version = "client.authentication.k8s.io/v1"
        text = f'{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{"token": "{token}"}}}}'
        (self._folder / "credential").write_text(text)


RULES = role_rules(PROXY)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    ray = FakeRay("ray-token")
    ray.script = lambda ray, body: Script(lines=["one", "two"], seconds=600)
    context, authority = tls_for(tmp_path)
    with serving_ray(ray), serving(ApiServer(), tls=context) as web:
        yield Outside(web, ray, tmp_path, authority)


async def test_jobs_go_through_the_api_servers_proxy(outside: Outside) -> None:
    """A package of some MiB, a job, its log, a stop; Ray's token and the API server's are both sent."""
    async with outside.jobs(RULES) as jobs:
        assert (await jobs.version()).session_name == outside.ray.session_name
        uri = "gcs://_ray_pkg_abc.zip"
        assert not await jobs.has_package(uri)
        await jobs.upload_package(uri, bytes(8 * 2**20))
        assert await jobs.has_package(uri)
        await jobs.submit(JobRequest("true", "id-1"))
        found = await jobs.info("id-1")
        assert found is not None
        assert await jobs.info("id-2") is None
        assert (await jobs.log_tail(found)).lines == ["one", "two"]
        await jobs.stop("id-1")


async def test_an_expired_login_is_renewed_before_ray_sees_a_job(outside: Outside) -> None:
    async with outside.jobs(RULES) as jobs:
        await jobs.version()
        outside.kubernetes.access.revoke("api-token")
        outside.kubernetes.access.grant("airflow", RULES, namespace="default", token="next")
        outside.credential("next")
        await jobs.submit(JobRequest("true", "id-1"))
        outside.kubernetes.access.revoke("next")
        with pytest.raises(AuthenticationError, match=r"Kubernetes API server .* log in again"):
            await jobs.version()
    assert list(outside.ray.jobs) == ["id-1"]


async def test_the_right_to_the_proxy_is_named(outside: Outside) -> None:
    async with outside.jobs(role_rules()) as jobs:
        with pytest.raises(AuthenticationError, match=r"services/proxy, as in docs/kubernetes_role\.yaml"):
            await jobs.version()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (413, RequestRejectedError),
        (429, ClusterUnreachableError),
        (504, ClusterUnreachableError),
        (409, RequestRejectedError),
    ],
)
def test_each_refusal_of_the_api_server_is_its_own(code: int, kind: type[ClusterError]) -> None:
    status = {"kind": "Status", "apiVersion": "v1", "message": "why\nnot", "code": code}
    found = refused_by_proxy("https://api/proxy", code, json.dumps(status).encode())
    assert type(found) is kind
    assert f"({code}: why not)" in str(found)
    for answer in (b"why", b'{"kind": "Status"}', b'["Status"]'):
        assert refused_by_proxy("https://api/proxy", code, answer) is None


async def test_rays_own_refusals_are_told_apart(outside: Outside) -> None:
    async with outside.jobs(RULES) as jobs:
        outside.ray.token = "another"
        with pytest.raises(AuthenticationError, match=r"Ray cluster at .* accept the token .* restart"):
            await jobs.version()


async def test_a_job_is_not_gone_because_its_service_is(outside: Outside) -> None:
    """A 404 of the API server is no answer of Ray, which would have the job submitted again."""
    async with outside.jobs(RULES, service="d-head-svc") as jobs:
        with pytest.raises(NotARayDashboardError, match="the cluster is gone, or has another name"):
            await jobs.info("id-1")
    async with outside.jobs(RULES) as jobs:
        outside.kubernetes.endpoints.clear()
        with pytest.raises(ClusterUnreachableError, match="no endpoints available"):
            await jobs.info("id-1")
        outside.point_to("http://127.0.0.1:1")
        with pytest.raises(ClusterUnreachableError, match="error trying to reach service"):
            await jobs.info("id-1")


async def test_a_certificate_may_say_who_asks(outside: Outside, tmp_path: Path) -> None:
    """The stand-in knows the certificate's holder by its name."""
    outside.kubernetes.access.grant("a server of a test", RULES, namespace="default")
    access = Access(NoLogin(), ClientCertificate(str(tmp_path / "server.pem")))
    found = Server(outside.web.url, access, "a test", verify=str(tmp_path / "authority.pem"))
    address = cluster_address(found, known("c-head-svc"), "ray-token")
    async with RayJobsClient(address, retries=QUICK) as jobs:
        assert (await jobs.version()).session_name == outside.ray.session_name


TOKEN = {"mode": "token"}


def head_ready(status: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "HeadPodReady", "status": status, "message": message, "reason": "x"}
    return {"conditions": [{**condition, "lastTransitionTime": "2026-11-21T00:00:00Z"}]}


READY, UNREADY = head_ready("True"), head_ready("False", "no GPU")


class Existing:
    def __init__(self) -> None:
        self.kubernetes = ApiServer()
        self.api = MemoryKubernetes(self.kubernetes)

    def cluster(self, *, status: Any = READY, **spec: Any) -> None:
        template = {"spec": {"containers": [{"name": "ray-head", "image": "i"}]}}
        head = {"headGroupSpec": {"template": template, "rayStartParams": {}}}
        manifest = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "shared"}}
        self.kubernetes.create(
            self.kubernetes.admin, "RayCluster", "default", {**manifest, "spec": head | spec}
        )
        set_status(self.kubernetes, "RayCluster", "shared", status)

    def secret(self, name: str, **data: str) -> None:
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        self.kubernetes.create(self.kubernetes.admin, "Secret", "default", manifest)

    async def address(self, api: Any = None) -> Any:
        return await existing_address(api or self.api, server(inside=True), "shared")


@pytest.fixture
def existing() -> Existing:
    return Existing()


async def test_a_cluster_by_name_without_a_token(existing: Existing) -> None:
    existing.cluster()
    found = await existing.address()
    assert (found.url, found.token) == ("http://shared-head-svc.default.svc:8265", None)


@pytest.mark.parametrize("named", [None, "own"])
async def test_a_token_comes_from_the_clusters_secret(existing: Existing, named: str | None) -> None:
    existing.cluster(authOptions=TOKEN | ({"secretName": named} if named else {}))
    existing.secret(named or "shared", auth_token="secret-token")
    assert (await existing.address()).token == "secret-token"


def test_each_cluster_that_can_not_be_used_says_why(assert_sentences: AssertSentences) -> None:
    def address(spec: dict[str, Any] | None, status: Any = READY, **secret: str) -> None:
        existing = Existing()
        if spec is not None:
            existing.cluster(status=status, **spec)
        if secret:
            existing.secret("shared", **secret)
        asyncio.run(existing.address())

    assert_sentences(address, ClusterError)


async def test_the_one_secret_that_must_be_readable_is_named(existing: Existing) -> None:
    existing.cluster(authOptions=TOKEN)
    user = existing.kubernetes.access.grant("airflow", role_rules(), namespace="default")
    with pytest.raises(
        ClusterError, match=r"allow `get` of this one Secret, as in docs/kubernetes_role\.yaml"
    ):
        await existing.address(MemoryKubernetes(existing.kubernetes, user=user))


async def test_a_cluster_that_is_being_deleted_is_refused(existing: Existing) -> None:
    existing.cluster()
    held = {"metadata": {"finalizers": ["a.b/c"]}}
    existing.kubernetes.patch(existing.kubernetes.admin, "RayCluster", "default", "shared", held)
    await existing.api.delete("RayCluster", "shared")
    with pytest.raises(ClusterError, match="is being deleted"):
        await existing.address()
