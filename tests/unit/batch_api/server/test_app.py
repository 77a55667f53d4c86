# SPDX-License-Identifier: Apache-2.0
"""Answers of the whole app: their form, whatever is asked, and how Airflow mounts it."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_provider_raybatch.batch_api.server import app
from airflow_provider_raybatch.batch_api.server.app import make_batch_app
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.plugins.raybatch import RayBatchPlugin
from airflow_provider_raybatch.plugins.web import HEADERS
from tests.support.airflow_server import token as token_of
from tests.support.batch_server import LINE, BatchServer

PROMPT = "a prompt of a client"


def assert_refusal(answer: Any, status: int) -> dict[str, Any]:
    """The answer is in the form that clients read, and has all headers; returns the error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert_headers(answer)
    document = answer.json()
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".") or error["message"].startswith("No such File")
    return error


def assert_headers(answer: Any) -> None:
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "no-store" in answer.headers["cache-control"]


def test_each_answer_has_a_request_id_of_its_own(on_disk: BatchServer) -> None:
    answers = [on_disk.get("/files"), on_disk.get("/files"), on_disk.get("/none")]
    for answer in answers:
        assert_headers(answer)
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/none", 404), ("GET", "/files/", 404), ("GET", "/v1/files", 404),
        ("GET", "/docs", 404), ("GET", "/openapi.json", 404), ("PUT", "/files", 405), ("HEAD", "/files", 405),
        ("OPTIONS", "/files", 405), ("PATCH", "/files/x", 405), ("POST", "/models", 405),
        ("GET", "/files/x/none", 404), ("GET", "/files/../../etc/passwd", 404),
    ],
)  # fmt: skip
def test_paths_and_methods_that_there_are_not(
    on_disk: BatchServer, method: str, path: str, status: int
) -> None:
    answer = on_disk.ask(method, path)
    if method == "HEAD":
        assert answer.status_code == status
    else:
        assert assert_refusal(answer, status)["type"] == "invalid_request_error"


def test_anonymous_is_told_how_to_log_in(on_disk: BatchServer) -> None:
    for path in ("/files", "/files/x", "/files/x/content", "/models", "/models/x"):
        answer = on_disk.get(path, None)
        error = assert_refusal(answer, 401)
        assert error["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


class Failing:
    """A route that fails with what a client has sent in its message."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def __call__(self) -> None:
        raise self._error


def test_a_defect_says_nothing_of_the_request(on_disk: BatchServer, caplog: pytest.LogCaptureFixture) -> None:
    on_disk.app.add_api_route("/defect", Failing(ValueError(PROMPT)))
    with caplog.at_level(logging.DEBUG):
        answer = on_disk.get("/defect")
    error = assert_refusal(answer, 500)
    assert error["type"] == "server_error"
    assert "prompt" not in answer.text
    [logged] = [one for one in caplog.records if one.name.endswith("server.app")]
    assert answer.headers["x-request-id"] in logged.getMessage()
    assert "ValueError" in logged.getMessage()
    assert "test_app.py" in logged.getMessage()
    assert PROMPT not in caplog.text


def test_what_storage_says_is_for_the_log(on_disk: BatchServer, caplog: pytest.LogCaptureFixture) -> None:
    on_disk.app.add_api_route("/storage", Failing(RaybatchError("s3://bucket: it does not answer.")))
    answer = on_disk.get("/storage")
    assert assert_refusal(answer, 503)["type"] == "server_error"
    assert "bucket" not in answer.text
    assert "s3://bucket" in caplog.text


def test_an_answer_that_breaks_off_is_not_taken_for_whole(
    on_disk: BatchServer, caplog: pytest.LogCaptureFixture
) -> None:
    from fastapi.responses import StreamingResponse

    async def broken() -> Any:
        async def pieces() -> Any:
            yield b"half"
            raise ValueError(PROMPT)

        return StreamingResponse(pieces())

    on_disk.app.add_api_route("/broken", broken, response_model=None)
    strict = TestClient(on_disk.app, base_url="http://server")
    with pytest.raises(Exception, match=r"^req_[0-9a-f]{32}$"):  # so that uvicorn ends the connection
        strict.get("/broken")
    assert PROMPT not in caplog.text


def test_a_query_that_fastapi_refuses_is_in_the_same_form(on_disk: BatchServer) -> None:
    async def route(number: int) -> int:
        return number

    on_disk.app.add_api_route("/number", route)
    error = assert_refusal(on_disk.get("/number?number=x"), 400)
    assert error["param"] == "number"


@pytest.mark.parametrize(
    ("name", "value"),
    [("ROOT", "relative/folder"), ("SECRET", "short"), ("STRICT", "perhaps"), ("MAX_FILE_BYTES", "2 GB")],
)
def test_a_wrong_setting_is_for_the_log_alone(
    on_disk: BatchServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(f"AIRFLOW__RAYBATCH__BATCH_API_{name}", value)
    app = make_batch_app()
    assert app is not None
    caplog.clear()
    for method, path in (("GET", "/files"), ("POST", "/files"), ("GET", "/none"), ("DELETE", "/files/x")):
        error = assert_refusal(BatchServer(app).ask(method, path, None), 503)
        assert f"[raybatch] batch_api_{name.lower()}" in caplog.text
        assert "raybatch]" not in error["message"]


@pytest.fixture
def mounted(on_disk: BatchServer) -> FastAPI:
    """A server that mounts the plugin's apps as Airflow's does, with the reports' shorter prefix."""
    root = FastAPI()
    for one in RayBatchPlugin().fastapi_apps:
        root.mount(one["url_prefix"], one["app"])
    return root


def test_the_mount_of_reports_leaves_the_batch_api_alone(mounted: FastAPI) -> None:
    login = {"Authorization": f"Bearer {token_of('viewer')}"}
    client = TestClient(mounted, headers=login)
    assert client.get("/raybatch/v1/models").json() == {"object": "list", "data": []}
    assert client.get("/raybatch/v1/").headers["content-type"] == "application/json"
    assert client.get("/raybatch/dags/x/tasks/y").headers["content-type"].startswith("text/html")
    below = TestClient(mounted, headers=login, root_path="/team")  # as of a proxy
    assert below.get("/team/raybatch/v1/models").json() == {"object": "list", "data": []}


def test_the_plugin_has_reports_alone_without_a_root() -> None:
    assert [one["url_prefix"] for one in RayBatchPlugin().fastapi_apps] == ["/raybatch"]


def test_the_official_client_of_two_users(on_disk: BatchServer) -> None:
    ann, bob = (
        openai.OpenAI(
            api_key=token_of(user), base_url="http://server", http_client=on_disk.client, max_retries=0
        )
        for user in ("ann", "bob")
    )
    expires: Any = {"anchor": "created_at", "seconds": 3600}
    file = ann.files.create(file=("a.jsonl", LINE), purpose="batch", expires_after=expires)
    assert (file.status, file.filename, file.bytes) == ("processed", "a.jsonl", len(LINE))
    assert ann.files.wait_for_processing(file.id) == ann.files.retrieve(file.id) == file
    others = [ann.files.create(file=("b.jsonl", LINE), purpose="batch").id for _ in range(4)]
    assert [one.id for one in ann.files.list(limit=2)] == [*others[::-1], file.id]
    assert ann.files.content(file.id).text == LINE.decode()
    with ann.files.with_streaming_response.content(file.id) as stream:
        assert list(stream.iter_lines()) == [LINE.decode().strip()]
    assert list(bob.files.list()) == []
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError) as refusal:
            call(file.id)
        assert refusal.value.request_id.startswith("req_")
    assert ann.files.delete(file.id).deleted
    assert [one.id for one in ann.models.list()] == ["small"]
    nobody = ann.with_options(api_key="sk-nonsense")
    with pytest.raises(openai.AuthenticationError, match="POST /auth/token"):
        nobody.files.list()


async def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_STALLED", 0.01)

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            app.Answering({}, never).send({"type": "http.response.body", "body": b"x"}), 30
        )
