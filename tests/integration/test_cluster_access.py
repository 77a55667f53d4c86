# SPDX-License-Identifier: Apache-2.0
"""Tokens, proxies with a path prefix, and TLS."""

from __future__ import annotations

import dataclasses
import datetime
import http.client
import ipaddress
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

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


@contextmanager
def proxy(target, prefix="", certificate=None):
    """Run a reverse proxy that serves `target` under `prefix`, over TLS if there is a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not self.path.startswith(prefix + "/"):
                self.answer(404, b"no such route")
                return
            upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, self.path.removeprefix(prefix), body, headers)
            response = upstream.getresponse()
            self.answer(response.status, response.read())
            upstream.close()

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - http.server's names

        def answer(self, code, body):
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *arguments):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """PEM files of two self-signed certificates for 127.0.0.1: the server's and another one."""
    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dashboard")])
    for owner in ("server", "stranger"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509
            .CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{owner}.pem").write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{owner}-ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder


async def version_through(address):
    async with RayJobsClient(address) as client:
        return (await client.version()).ray_version


async def test_with_the_token_everything_works(token_ray_cluster):
    async with RayJobsClient(token_ray_cluster.address) as client:
        await ensure_package(client, Package({"a": b"b"}))
        assert await client.takes_jobs()
        await client.submit(JobRequest("echo done", "token-job"))
        lines = []
        outcome = await follow(client, Followed("token-job", poll_interval=0.3), lines.extend)
        assert outcome.state == "succeeded"
        assert "done" in [line.text for line in lines]


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
            client.logs("x"),
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
            await client.submit(JobRequest("echo through", "prefix-job"))
            lines = []
            outcome = await follow(client, Followed("prefix-job", poll_interval=0.3), lines.extend)
        assert outcome.state == "succeeded"
        assert "through" in [line.text for line in lines]
        with pytest.raises(NotARayDashboardError, match="correct the url"):
            await version_through(dataclasses.replace(through, url=url.removesuffix("/ray")))


async def test_tls(token_ray_cluster, certificates):
    address = token_ray_cluster.address
    with proxy(address.url, certificate=certificates / "server.pem") as url:
        trusting = dataclasses.replace(address, url=url, verify=str(certificates / "server-ca.pem"))
        assert await version_through(trusting)
        assert await version_through(dataclasses.replace(trusting, verify=False))
        for verify in (True, str(certificates / "stranger-ca.pem")):
            with pytest.raises(TlsError, match="CA bundle"):
                await version_through(dataclasses.replace(trusting, verify=verify))
