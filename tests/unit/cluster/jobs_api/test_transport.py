# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest

from airflow_provider_raybatch.cluster.jobs_api import transport
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import PACKAGE_LIMIT, RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AuthenticationError,
    ClusterUnreachableError,
    NotARayDashboardError,
    PackageTooLargeError,
    RequestRejectedError,
    TlsError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy, excerpt
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.fake_ray import NO_ANSWER

QUICK = RetryPolicy(attempts=3, first_wait=0.01)


async def test_reading_is_repeated_until_an_answer_comes(ray, client):
    ray.stage("GET", "/api/version", NO_ANSWER)
    ray.stage("GET", "/api/version", (503, "starting"))
    assert (await client.version()).ray_version == "2.60.0"
    assert ray.count("GET", "/api/version") == 3


async def test_a_submission_is_never_repeated(ray, client):
    ray.stage("POST", "/api/jobs/", NO_ANSWER)
    with pytest.raises(ClusterUnreachableError):
        await client.submit(JobRequest("true", "a-1"))
    assert ray.count("POST") == 1


@pytest.mark.parametrize(
    ("code", "body", "kind", "message"),
    [
        (400, "bad field", RequestRejectedError, "400: bad field"),
        (401, "Unauthorized: no token", AuthenticationError, "requires a token"),
        (403, "Forbidden", AuthenticationError, "refuses the token"),
        (404, "404: Not Found", NotARayDashboardError, "correct the url"),
        (404, "<html>default backend</html>", NotARayDashboardError, "an HTML page"),
        (405, "", NotARayDashboardError, "no text"),
        (413, "too large", PackageTooLargeError, "413"),
        (404, "no healthy upstream", NotARayDashboardError, "no healthy upstream"),  # not a lost job
        (429, "slow down", ClusterUnreachableError, "overloaded"),
        (500, "No available agent to submit job", ClusterUnreachableError, "No available agent"),
        (
            500,
            "RayletDied: node 4af is dead",
            ClusterUnreachableError,
            "); a node of it is dead, or its head",
        ),
        (500, "RuntimeError: Request failed with status code 400: why.", RequestRejectedError, "why"),
        (302, "", NotARayDashboardError, "302"),
    ],
)
async def test_status_codes_become_the_right_error(ray, client, code, body, kind, message):
    ray.stage("GET", "/api/jobs/x", (code, body), times=QUICK.attempts)
    with pytest.raises(kind) as raised:
        await client.info("x")
    assert message in str(raised.value)
    assert ray.url in str(raised.value)
    assert str(raised.value).endswith(".")
    repeated = issubclass(kind, ClusterUnreachableError) and code != 404
    assert ray.count("GET") == (QUICK.attempts if repeated else 1)


async def test_another_protocol_is_not_a_dashboard():
    """Here HTTP/2, as Ray's GCS speaks it."""

    async def answer(reader, writer):
        writer.write(b"\0\0\x12\4\0\0\0\0\0\0\3\x7f\xff\xff\xff\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, RayJobsClient(ClusterAddress(url), retries=QUICK) as client:
        with pytest.raises(NotARayDashboardError, match=rf"^{url} speaks no HTTP \(.*by default 8265\.$"):
            await client.version()


@pytest.mark.parametrize("body", ["<html>Welcome</html>", '{"version": "7"}'])
async def test_web_page_is_not_a_dashboard(ray, client, body):
    ray.stage("GET", "/api/version", (200, body))
    with pytest.raises(NotARayDashboardError, match="/api/version"):
        await client.version()


@pytest.mark.parametrize("url", ["http://r\u00e4y_head:8265", "http://head:8265/\x07"])
async def test_an_address_that_no_request_can_be_sent_to(url):
    async with RayJobsClient(ClusterAddress(url), retries=QUICK) as client:
        with pytest.raises(SpecError, match=r"^url: .* is not an address"):
            await client.version()


@pytest.mark.parametrize("proxy", ["socks4://gate:1080", "gate://gate:1080"])
async def test_a_proxy_of_an_unknown_kind(monkeypatch, proxy):
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(SpecError, match="proxy that this machine's environment names can't be used"):
        await RayJobsClient(ClusterAddress("http://head:8265")).__aenter__()


async def test_a_server_that_refuses_or_is_silent_is_unreachable(monkeypatch):
    monkeypatch.setattr(transport, "_WHOLE_ANSWER", 1000)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = ClusterAddress(f"http://127.0.0.1:{server.getsockname()[1]}", request_timeout=0.2)
        async with RayJobsClient(address, retries=QUICK) as client:
            with pytest.raises(ClusterUnreachableError, match="gave no answer"):
                await client.version()
            server.listen()
            with pytest.raises(ClusterUnreachableError, match="read timeout"):
                await client.version()


async def test_an_answer_that_never_ends_is_given_up(monkeypatch):
    """The time for a whole answer passes a thousand times as fast, and that between two bytes does not."""
    timeout = asyncio.timeout
    monkeypatch.setattr(
        transport.asyncio, "timeout", lambda bound: timeout(None if bound is None else bound / 1000)
    )
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle():
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while True:
                    connection.sendall(b"a")
                    time.sleep(0.02)

        threading.Thread(target=trickle, daemon=True).start()
        address = ClusterAddress(f"http://127.0.0.1:{server.getsockname()[1]}", request_timeout=60)
        async with RayJobsClient(address, retries=RetryPolicy(attempts=1)) as client:
            with pytest.raises(ClusterUnreachableError, match=r"no whole answer within 600 s"):
                await asyncio.wait_for(client.version(), 120)


async def test_tls_to_a_server_without_it(ray):
    async with RayJobsClient(ClusterAddress(ray.url.replace("http:", "https:")), retries=QUICK) as client:
        with pytest.raises(TlsError, match="plain HTTP"):
            await client.version()


async def test_headers_cookies_and_token_are_sent(ray):
    address = ClusterAddress(ray.url, token="t", headers={"X-Team": "a"}, cookies={"sid": "c"})
    async with RayJobsClient(address) as client:
        await client.version()
    sent = ray.headers[-1]
    assert (sent["authorization"], sent["x-team"], sent["cookie"]) == ("Bearer t", "a", "sid=c")
    assert sent["user-agent"] == "airflow-provider-raybatch"


async def test_secrets_stay_out_of_errors(ray):
    ray.stage("GET", "/api/version", (403, "Forbidden"))
    address = ClusterAddress(ray.url, token="s3cret", headers={"X-Key": "s3cret"})
    async with RayJobsClient(address) as client:
        with pytest.raises(AuthenticationError) as raised:
            await client.version()
    assert "s3cret" not in str(raised.value)


async def test_what_the_cluster_would_lose_is_not_sent(ray, client):
    with pytest.raises(PackageTooLargeError, match=r"100\.0 MiB, more than the 100 MiB"):
        await client.upload_package("gcs://_ray_pkg_x.zip", bytes(PACKAGE_LIMIT + 1))
    with pytest.raises(RequestRejectedError, match="submission_id"):
        await client.submit(JobRequest("true", "a/b"))
    assert ray.requests == []


def test_waits_grow_and_are_bounded():
    policy = RetryPolicy(first_wait=1.0, longest_wait=4.0)
    for attempt, bound in enumerate([1, 2, 4, 4, 4]):
        waits = [policy.wait(attempt) for _ in range(300)]
        assert 0 <= min(waits) < 0.2 * bound
        assert 0.8 * bound < max(waits) <= bound


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no text"),
        ("\n first\nsecond", "first"),
        ("Traceback (most recent call last):\n  File\nValueError: why\n\n.", "ValueError: why"),
        ("  <!doctype html>", "an HTML page"),
        ("x" * 5000, "x" * 297 + "..."),
    ],
)
def test_excerpt(text, line):
    assert excerpt(text) == line
