# SPDX-License-Identifier: Apache-2.0
"""What is sent to an API server, what is sent again, and what an answer means; over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airflow_provider_raybatch.cluster.jobs_api.access import Access, ClientCertificate
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, TlsError
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.kubernetes.api import errors
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.server import ApiServer
from tests.support.approved import AssertSentences
from tests.support.http_server import Authority, Handler, listening

QUICK = RetryPolicy(attempts=3, first_wait=0.001, longest_wait=0.001)
RAYJOB = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "a"}}
CLOSE = 0
"""An answer that never comes: the server closes the connection."""


@dataclass
class Login:
    """Credentials that are renewed once they are refused."""

    values: list[str] = field(default_factory=lambda: ["Bearer old", "Bearer new"])

    @property
    def identity(self) -> str:
        return f"login {id(self)}"

    async def header(self) -> str | None:
        return self.values[0] if self.values else None

    def refused(self, header: str | None) -> None:
        if len(self.values) > 1 and header == self.values[0]:
            del self.values[0]


@dataclass
class Asked:
    method: str
    path: str
    params: dict[str, str]
    body: Any
    headers: dict[str, str]


class Server:
    """Answers what a test wrote down, one after another; the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]]] = [(200, RAYJOB, {})]
        self.asked: list[Asked] = []
        self.port = 0
        self.date = ""

    def answer(self, *answers: tuple[Any, ...]) -> None:
        self.answers = [(code, *rest, {})[:3] if len(rest) < 2 else (code, *rest) for code, *rest in answers]

    def client(self, **options: Any) -> KubernetesClient:
        options = {"retries": QUICK, **options}
        return KubernetesClient(self.server(), "jobs", **options)

    def server(self, scheme: str = "http", **changes: Any) -> ApiServer:
        given = {"access": Access(Login()), "credentials": "connection 'k8s', field kube_config", **changes}
        return ApiServer(f"{scheme}://localhost:{self.port}", **given)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with listening(_handler(found)) as found.port:
        yield found


def _handler(server: Server) -> type[Handler]:
    class Answer(Handler):
        def answer(self) -> None:
            url = urlsplit(self.path)
            body = self.body()
            asked = Asked(
                self.command,
                url.path,
                {name: values[0] for name, values in parse_qs(url.query).items()},
                json.loads(body) if body else None,
                {name.lower(): value for name, value in self.headers.items()},
            )
            server.asked.append(asked)
            code, answer, headers = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
            if code == CLOSE:
                self.close_connection = True
                return
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self.send(code, text.encode(), headers)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

        def date_time_string(self, timestamp: float | None = None) -> str:
            return server.date or super().date_time_string(timestamp)

    return Answer


def status(code: int, reason: str, message: str, **details: Any) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


NOT_FOUND = status(404, "NotFound", 'rayjobs.ray.io "a" not found', name="a", kind="rayjobs")


async def test_create_is_strict(server: Server) -> None:
    async with server.client() as api:
        assert await api.create(RAYJOB) == RAYJOB
    (first,) = server.asked
    assert (first.method, first.path) == ("POST", "/apis/ray.io/v1/namespaces/jobs/rayjobs")
    assert first.params == {"fieldValidation": "Strict"}
    assert first.body == RAYJOB
    assert first.headers["authorization"] == "Bearer old"


async def test_patch_is_a_merge_patch(server: Server) -> None:
    async with server.client() as api:
        await api.patch("RayJob", "a", {"spec": {"jobId": "x"}, "metadata": {"uid": "u"}})
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("PATCH", "/apis/ray.io/v1/namespaces/jobs/rayjobs/a")
    assert asked.headers["content-type"] == "application/merge-patch+json"
    assert asked.body == {"spec": {"jobId": "x"}, "metadata": {"uid": "u"}}


async def test_delete_waits_for_what_is_owned(server: Server) -> None:
    async with server.client() as api:
        assert await api.delete("RayJob", "a", uid="u") is True
        server.answer(NOT_FOUND)
        assert await api.delete("RayJob", "a", uid="u") is False
        server.answer(status(409, "Conflict", "UID in precondition: u, UID in object meta: v"))
        with pytest.raises(errors.ChangedObjectError, match="RayJob 'a'"):
            await api.delete("RayJob", "a", uid="u")
    body = server.asked[0].body
    assert (body["propagationPolicy"], body["preconditions"]) == ("Foreground", {"uid": "u"})


async def test_a_missing_object_is_none(server: Server) -> None:
    server.answer(NOT_FOUND)
    async with server.client() as api:
        assert await api.get("RayJob", "a") is None
        assert await api.patch("RayJob", "a", {"spec": {}}) is None


async def test_lists_go_over_pages(server: Server) -> None:
    def page(name: str, after: str) -> tuple[int, dict[str, Any]]:
        return 200, {"kind": "PodList", "metadata": {"continue": after}, "items": [{"name": name}]}

    server.answer(page("a", "two"), page("b", ""))
    async with server.client() as api:
        found = await api.list("Pod", labels="x=y", fields="status.phase=Pending")
        assert [one["name"] for one in found] == ["a", "b"]
        assert server.asked[1].params["continue"] == "two"
        assert server.asked[1].params["labelSelector"] == "x=y"
        assert server.asked[1].params["fieldSelector"] == "status.phase=Pending"
        server.answer(page("a", "two"), status(410, "Expired", "The provided continue parameter is too old"))
        with pytest.raises(errors.KubernetesUnreachableError, match="continue parameter is too old"):
            await api.list("Pod")


@pytest.mark.parametrize(
    "trouble",
    [
        (CLOSE, "", {}),
        (429, "slow down", {"Retry-After": "0"}),
        (500, "etcdserver: leader changed", {}),
        (503, "apiserver is shutting down", {}),
    ],
)
async def test_what_is_safe_is_sent_again(server: Server, trouble: Any) -> None:
    async with server.client() as api:
        for send in (
            lambda: api.get("RayJob", "a"),
            lambda: api.patch("RayJob", "a", {"metadata": {"uid": "u"}}),
            lambda: api.delete("RayJob", "a", uid="u"),
        ):
            server.answer(trouble, trouble, (200, RAYJOB, {}))
            assert await send()
            server.answer(trouble)
            with pytest.raises(errors.KubernetesUnreachableError):
                await send()


async def test_what_may_be_done_already_is_sent_once(server: Server) -> None:
    async with server.client() as api:
        for send in (
            lambda: api.create(RAYJOB),
            lambda: api.patch("RayJob", "a", {"metadata": {"resourceVersion": "7"}}),
            lambda: api.delete("RayJob", "a"),
        ):
            for trouble in (CLOSE, "", {}), (500, "broken", {}):
                server.asked.clear()
                server.answer(trouble)
                with pytest.raises(errors.KubernetesUnreachableError):
                    await send()
                assert len(server.asked) == 1
            # This one was surely not done.
            server.answer((429, "slow down", {"Retry-After": "0"}), (200, RAYJOB, {}))
            assert await send()


async def test_expired_credentials_are_renewed_once(server: Server) -> None:
    unauthorized = status(401, "Unauthorized", "Unauthorized")
    async with server.client() as api:
        server.answer(unauthorized, (200, RAYJOB, {}))
        assert await api.create(RAYJOB)
        assert [one.headers["authorization"] for one in server.asked] == ["Bearer old", "Bearer new"]
        server.answer(unauthorized)
        with pytest.raises(errors.KubernetesLoginError, match="connection 'k8s', field kube_config") as found:
            await api.get("RayJob", "a")
    assert "Bearer" not in str(found.value)


async def test_now_follows_the_servers_clock(server: Server) -> None:
    then = time.time() - 86400
    server.date = formatdate(then, usegmt=True)
    async with server.client() as api:
        await api.get("RayJob", "a")
        assert -2 < api.now() - then < 60
        server.date = formatdate(then + 3600, usegmt=True)
        server.answer((500, "broken"))
        with pytest.raises(errors.KubernetesUnreachableError):
            await api.get("RayJob", "a")
        assert -2 < api.now() - then - 3600 < 60


def test_each_refusal_is_one_sentence(server: Server, assert_sentences: AssertSentences) -> None:
    def said(answer: tuple[Any, ...]) -> str:
        async def create() -> None:
            async with server.client() as api:
                await api.create(RAYJOB)

        server.answer(answer)
        with pytest.raises(ClusterError) as caught:
            asyncio.run(create())
        return f"{type(caught.value).__name__}: {caught.value}"

    assert_sentences(said, port=str(server.port))


async def test_another_uid_in_a_patch_is_a_conflict(server: Server) -> None:
    cause = {"field": "metadata.uid", "reason": "FieldValueInvalid"}
    async with server.client() as api:
        for answer in (
            status(409, "Conflict", "Precondition failed"),
            status(422, "Invalid", "field is immutable", causes=[cause]),
        ):
            server.answer(answer)
            with pytest.raises(errors.ChangedObjectError):
                await api.patch("RayJob", "a", {"metadata": {"uid": "u"}})


async def test_a_server_that_is_not_there_is_unreachable(server: Server) -> None:
    server.port = 1
    async with server.client() as api:
        with pytest.raises(errors.KubernetesUnreachableError, match="gave no answer when asked to get"):
            await api.get("RayJob", "a")


def test_works_in_blocking_code_again_and_again(server: Server) -> None:
    async def ask() -> object:
        async with server.client() as one, server.client() as two:
            return await one.get("RayJob", "a") == await two.get("RayJob", "a")

    assert run_blocking(ask())
    assert run_blocking(ask())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_certificates_on_both_sides(authority: Authority, tmp_path: Path) -> None:
    """The server asks for a client certificate, and its own one is for another name than its address."""
    pem = authority.server("kubernetes.default")
    own = tmp_path / "own.pem"
    own.write_bytes(pem.read_bytes())
    found = Server()
    with listening(_handler(found), pem, clients=authority.pem) as found.port:
        access = Access(Login([]), ClientCertificate(str(own)), "kubernetes.default")
        server = found.server("https", access=access, verify=str(authority.pem))
        async with KubernetesClient(server, retries=QUICK) as api:
            assert await api.get("RayJob", "a") == RAYJOB
        assert "authorization" not in found.asked[0].headers
        unnamed = replace(access, server_name=None)
        wrong = replace(server, access=unnamed)
        async with KubernetesClient(wrong, retries=QUICK) as api:
            with pytest.raises(TlsError, match="certificate-authority"):
                await api.get("RayJob", "a")
        async with KubernetesClient(replace(wrong, verify=False), retries=QUICK) as api:
            assert await api.get("RayJob", "a") == RAYJOB
        bare = replace(server, access=replace(access, certificate=None))
        async with KubernetesClient(bare, retries=QUICK) as api:
            with pytest.raises((TlsError, errors.KubernetesUnreachableError)):
                await api.get("RayJob", "a")
