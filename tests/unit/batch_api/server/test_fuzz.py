# SPDX-License-Identifier: Apache-2.0
"""Requests that no client sends: each gets an answer in the usual form, and never one about a defect."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import Request

from airflow_provider_raybatch.batch_api.server import batches
from airflow_provider_raybatch.batch_api.server.batches import json_object
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.store.ids import new_file_id
from tests.support.batch_server import BatchServer

ODD = [
    "", " ", ".", "..", "../..", "..%2f..%2fetc%2fpasswd", "%00", "%0a", "\u202e", "ü", "😀", "file-", "'",
    "file-" + "0" * 31, "file-" + "0" * 33, "file-" + "A" * 32, "file-" + "\uff10" * 32, "x" * 10_000,
    new_file_id() + "\n", new_file_id() + "/", "batch_" + "0" * 32, "null", "-1", "1e9", "NaN", "true", "[]",
    "record.json", "s3://bucket/key", "file:///etc/passwd", "{}", "<script>", "' OR 1=1", "~", "*", "?", "#",
]  # fmt: skip
CREATE = {
    "input_file_id": new_file_id(), "endpoint": "/v1/chat/completions", "completion_window": "24h",
}  # fmt: skip
PATHS = ["/files/{}", "/files/{}/content", "/batches/{}", "/batches/{}/cancel", "/models/{}", "/{}"]


def assert_clean(answer: Any) -> None:
    """An answer without a defect; a refusal is in the form that clients read."""
    assert answer.status_code < 500, answer.text
    assert answer.headers["x-request-id"].startswith("req_")
    if answer.status_code >= 400 and answer.content:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(error["message"]) < 500


@pytest.mark.parametrize("path", PATHS)
def test_odd_ids(on_disk: BatchServer, path: str) -> None:
    for odd in ODD:
        for method in ("GET", "POST", "DELETE"):
            assert_clean(on_disk.ask(method, path.format(quote(odd, safe="%/"))))


def test_odd_parameters(on_disk: BatchServer) -> None:
    on_disk.file()
    for odd in ODD:
        for name in ("limit", "after", "order", "purpose", "none"):
            assert_clean(on_disk.get("/files", params={name: odd}))
            assert_clean(on_disk.get(f"/files?{name}={quote(odd)}&{name}=1"))


def test_odd_headers(on_disk: BatchServer) -> None:
    for name in ("Authorization", "Accept", "Range", "Host", "Cookie", "X-Request-Id", "Content-Type"):
        for odd in ("", "x" * 5000, "é", "bytes=0-1", "../..", "a, b", '"'):
            headers = [(b"authorization", b""), (name.encode(), odd.encode("latin-1"))]
            answer = on_disk.client.get("/files", headers=headers)
            assert_clean(answer)
            assert answer.status_code == 401
            assert_clean(on_disk.get("/files", headers={name: odd.encode("latin-1")}))


def values(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kinds = ["text", "number", "other"] if depth > 3 else ["text", "number", "other", "list", "object"]
    kind = chance.choice(kinds)
    if kind == "text":
        return chance.choice(ODD)
    if kind == "number":
        return chance.choice([0, -1, 1.5, 10**30, 1e308, -0.0])
    if kind == "other":
        return chance.choice([None, True, False])
    inner = [values(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind == "list" else {chance.choice(ODD): one for one in inner}


def test_odd_bodies(on_disk: BatchServer) -> None:
    chance = random.Random(7)
    names = [
        "input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after", "purpose",
        "\ud800", "n" * 300,
    ]  # fmt: skip
    for number in range(50):
        given = {name: values(chance) for name in chance.sample(names, chance.randrange(len(names)))}
        body = values(chance) if number % 4 == 0 else {**chance.choice([CREATE, {}]), **given}
        for method, path in (("POST", "/batches"), ("POST", "/files"), ("POST", "/batches/x/cancel")):
            assert_clean(on_disk.ask(method, path, content=json.dumps(body)))
    for raw in (b"", b"\x00", b"\xff\xfe", b"[" * 100_000, b"{", b'{"a": NaN}', b'"\\ud800"', b"x" * 300_000):
        for path in ("/batches", "/files", "/batches/x/cancel"):
            assert_clean(on_disk.ask("POST", path, content=raw))
            typed = {"Content-Type": "multipart/form-data; boundary=x"}
            assert_clean(on_disk.ask("POST", path, content=raw, headers=typed))


class Body:
    """A request with a body alone."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def stream(self) -> Any:
        for piece in self._pieces:
            yield piece


async def read(*pieces: bytes) -> dict[str, Any]:
    request: Any = Body(*pieces)
    return await json_object(request, most=1000)


async def test_a_body_is_a_bounded_json_object() -> None:
    assert await read() == await read(b" \n") == {}
    assert await read(b'{"a"', b": 1}") == {"a": 1}
    for content in (b"{", b"[1]", b"1", b"null", b"\xff", b'{"a": Infinity}', b"[" * 900):
        with pytest.raises(OpenAiError, match="The body is") as refusal:
            await read(content)
        assert refusal.value.status == 400
    for content in (b'{"a": 1, "a": 2}', b'{"b": [{"c": {}, "a": 1, "\\u0061": 1}]}'):
        with pytest.raises(OpenAiError, match=r"^a: the body has it twice in one object") as refusal:
            await read(content)
        assert (refusal.value.status, refusal.value.param) == (400, "a")
    with pytest.raises(OpenAiError) as refusal:
        await read(b'{"a": "', b"x" * 1000)
    assert refusal.value.status == 413


async def test_a_body_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SECONDS", 0.01)

    async def receive() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(OpenAiError) as refusal:
        await asyncio.wait_for(json_object(Request({"type": "http"}, receive)), 30)
    assert refusal.value.status == 408
