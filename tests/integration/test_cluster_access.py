# SPDX-License-Identifier: Apache-2.0
"""Tokens, proxies with a path prefix, and TLS."""

from __future__ import annotations

import dataclasses
import http.client
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from airflow_provider_raybatch.cluster.follow.poll import Followed, follow
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AuthenticationError,
    NotARayDashboardError,
    TlsError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.submit.package import Package, ensure_package
from tests.support.http_server import Authority, Handler, listening


@contextmanager
def proxy(target, prefix="", pem=None):
    """Run a reverse proxy that serves `target` under `prefix`, over TLS if there is a certificate."""

    class Proxy(Handler):
        def handle_any(self):
            body = self.body()
            if not self.path.startswith(prefix + "/"):
                self.send(404, b"no such route")
                return
            upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, self.path.removeprefix(prefix), body, headers)
            response = upstream.getresponse()
            self.send(response.status, response.read())
            upstream.close()

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - http.server's names

    with listening(Proxy, pem) as port:
        yield f"http{'s' if pem else ''}://127.0.0.1:{port}{prefix}"


async def version_through(address):
    async with RayJobsClient(address) as client:
        return (await client.version()).ray_version


async def assert_a_job_runs(client, name):
    await client.submit(JobRequest("echo done", name))
    lines = []
    outcome = await follow(client, Followed(name, poll_interval=0.3), lines.extend)
    assert outcome.state == "succeeded"
    assert "done" in [line.text for line in lines]


async def test_with_the_token_everything_works(token_ray_cluster):
    async with RayJobsClient(token_ray_cluster.address) as client:
        await ensure_package(client, Package({"a": b"b"}))
        assert await client.takes_jobs()
        await assert_a_job_runs(client, "token-job")


@pytest.mark.parametrize(
    ("token", "message"),
    [(None, "requires a token (401"), ("0" * 64, "refuses the token (403"), ("x", "token (40")],
)
async def test_without_the_right_token_nothing_does(token_ray_cluster, token, message):
    address = dataclasses.replace(token_ray_cluster.address, token=token)
    package = Package({"a": b"b"})
    async with RayJobsClient(address) as client:
        for call in (
            client.version(),
            client.info("x"),
            client.jobs(),
            client.submit(JobRequest("true", "x")),
            client.stop("x"),
            client.upload_package(package.uri, package.content),
            client.takes_jobs(),
        ):
            with pytest.raises(AuthenticationError) as raised:
                await call
            assert message in str(raised.value)
            assert "connection" in str(raised.value)
            assert token is None or len(token) == 1 or token not in str(raised.value)


async def test_a_token_in_rays_own_header(token_ray_cluster):
    address = token_ray_cluster.address
    header = {"X-Ray-Authorization": f"Bearer {address.token}"}
    assert await version_through(ClusterAddress(address.url, headers=header))
    cookie = {"ray-authentication-token": address.token}
    assert await version_through(ClusterAddress(address.url, cookies=cookie))


async def test_a_path_prefix(token_ray_cluster):
    address = token_ray_cluster.address
    with proxy(address.url, "/team/ray") as url:
        through = dataclasses.replace(address, url=url)
        async with RayJobsClient(through) as client:
            assert await client.info("nothing") is None
            await assert_a_job_runs(client, "prefix-job")
        with pytest.raises(NotARayDashboardError, match="correct the url"):
            await version_through(dataclasses.replace(through, url=url.removesuffix("/ray")))


async def test_tls(token_ray_cluster, tmp_path):
    address = token_ray_cluster.address
    for owner in ("server", "stranger"):
        (tmp_path / owner).mkdir()
    server, stranger = (Authority(tmp_path / owner) for owner in ("server", "stranger"))
    with proxy(address.url, pem=server.server("127.0.0.1")) as url:
        trusting = dataclasses.replace(address, url=url, verify=str(server.pem))
        assert await version_through(trusting)
        assert await version_through(dataclasses.replace(trusting, verify=False))
        for verify in (True, str(stranger.pem)):
            with pytest.raises(TlsError, match="CA bundle"):
                await version_through(dataclasses.replace(trusting, verify=verify))
