# SPDX-License-Identifier: Apache-2.0
"""Uploads are stored as they come in; what is refused or cut leaves nothing."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import itertools
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server import upload
from airflow_provider_raybatch.batch_api.server.upload import LONGEST_NAME, shown_name
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.approved import AssertSentences
from tests.support.forms import CONTENT, CONTENT_TYPE, EXPIRES, PURPOSE, app, file_part, form, in_chunks, post

LINES = b"".join(b'{"custom_id": "%d"}\n' % number for number in range(1000))


def left(disk: LocalFolder) -> list[str]:
    """Return all files in a folder, scratch files too."""
    return [path.name for path in Path(disk.root).rglob("*") if path.is_file()]


def stored(disk: LocalFolder) -> bytes:
    assert left(disk) == ["content.jsonl"]
    return disk.read(CONTENT)


def scope_of(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "raw_path": b"/v1/files",
        "query_string": b"",
        "headers": [(b"content-type", CONTENT_TYPE.encode()), *headers],
        "http_version": "1.1",
        "scheme": "http",
    }


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("order", list(itertools.permutations([PURPOSE, *EXPIRES, file_part(LINES)])))
async def test_parts_come_in_any_order(disk: LocalFolder, order: Sequence[tuple[bytes, bytes]]) -> None:
    answer = await post(app(disk), form(*order))
    assert answer.json() == {
        "purpose": "batch",
        "expires_after": 3600,
        "filename": "night.jsonl",
        "bytes": len(LINES),
        "lines": 1000,
        "sha256": hashlib.sha256(LINES).hexdigest(),
    }
    assert stored(disk) == LINES


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
async def test_chunks_end_anywhere(disk: LocalFolder, size: int) -> None:
    content = b"a\r\n--0123456789abcde\r\n--0123\r\r\n\r\n" * 20
    body = form(PURPOSE, file_part(content))
    answer = await post(app(disk), in_chunks(body, size))
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(content))
    assert stored(disk) == content


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", 0), (b"\n", 1), (b"x", 1), (b"x\n", 1), (b"x\ny", 2), (b"\n\n\n", 3), (b"x\r\ny\r\n", 2)],
)
async def test_lines_are_counted(disk: LocalFolder, content: bytes, lines: int) -> None:
    answer = await post(app(disk), form(PURPOSE, file_part(content)))
    assert answer.json()["lines"] == lines
    assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest()
    assert stored(disk) == content


FILE = file_part(LINES)
SECONDS = b'form-data; name="expires_after[seconds]"'


def test_what_is_wrong_is_refused_by_name(disk: LocalFolder, assert_sentences: AssertSentences) -> None:
    def said(*parts: tuple[bytes, bytes]) -> str:
        answer = asyncio.run(post(app(disk), form(*parts)))
        error = answer.json()["error"]
        assert (error["type"], left(disk)) == ("invalid_request_error", [])
        return f"{answer.status_code} {error['param']}: {error['message']}"

    assert_sentences(said)


@pytest.mark.parametrize(
    ("parts", "expires_after"), [((EXPIRES[0], (SECONDS, b"2592000")), 2_592_000), ((), None)]
)
async def test_the_longest_expiry_and_none(disk: LocalFolder, parts: Any, expires_after: int | None) -> None:
    answer = await post(app(disk), form(PURPOSE, *parts, FILE))
    assert answer.json()["expires_after"] == expires_after


@pytest.mark.parametrize(
    "given", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
async def test_another_content_type_is_refused(disk: LocalFolder, given: str) -> None:
    answer = await post(app(disk), form(PURPOSE, FILE), {"Content-Type": given})
    assert answer.json()["error"]["message"] == (
        f"Content-Type: {given!r} is not 'multipart/form-data' with a boundary; let the client's library "
        "write it."
    )
    assert (answer.status_code, left(disk)) == (400, [])


async def test_a_compressed_body_is_refused(disk: LocalFolder) -> None:
    answer = await post(app(disk), gzip.compress(form(PURPOSE, FILE)), {"Content-Encoding": "gzip"})
    assert "send it as an HTTP library does" in answer.json()["error"]["message"]
    assert (answer.status_code, left(disk)) == (400, [])


@pytest.mark.parametrize("size", [0, 1, 100, 400, 19_000])
async def test_a_form_that_ends_early_is_refused(disk: LocalFolder, size: int) -> None:
    answer = await post(app(disk), form(PURPOSE, FILE)[:size])
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "The body ends before the form does; send it whole."
    assert left(disk) == []


@pytest.mark.parametrize(("limit", "status"), [(len(LINES), 200), (len(LINES) - 1, 413)])
async def test_a_file_is_refused_above_the_limit(disk: LocalFolder, limit: int, status: int) -> None:
    answer = await post(app(disk, limit), in_chunks(form(PURPOSE, FILE), 1000))
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["error"] == {
            "message": f"file: it is larger than {limit / 1e6:g} MB, the most that is accepted; split it.",
            "type": "invalid_request_error",
            "param": "file",
            "code": "file_too_large",
        }
        assert left(disk) == []


async def test_an_announced_length_is_refused_unread(disk: LocalFolder) -> None:
    """A client that waits for "100 Continue" sends nothing of its file."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = scope_of((b"content-length", b"2000000000"), (b"expect", b"100-continue"))
    await app(disk, 1_000_000)(scope, receive, send)
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["error"]["code"] == "file_too_large"


async def test_much_besides_the_file_is_refused(disk: LocalFolder) -> None:
    body = form(PURPOSE, FILE) + b"x" * 70_000
    answer = await post(app(disk), in_chunks(body, 5000))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "The form has more than 64 KiB besides the file; send nothing else."
    )
    assert left(disk) == []


@pytest.mark.parametrize(("size", "pieces"), [(5000, 1), (1, 100_000)])
async def test_a_client_that_is_silent_or_trickles_is_given_up(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, size: int, pieces: int
) -> None:
    monkeypatch.setattr(upload, "_IDLE", 0.05)
    monkeypatch.setattr(upload, "_REST", 0.01)
    sent: list[dict[str, Any]] = []
    given = islice(in_chunks(form(PURPOSE, file_part(b"x" * 100_000)), size), pieces)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        for piece in given:
            return {"type": "http.request", "body": piece, "more_body": True}
        await never()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(disk)(scope_of(), receive, send), 20)
    assert sent[0]["status"] == 408
    assert left(disk) == []


async def test_a_cancelled_request_leaves_nothing(disk: LocalFolder) -> None:
    """As when the server shuts down."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": True}
        for chunk in in_chunks(form(PURPOSE, file_part(LINES * 200))[:-1000], 100_000)
    ]
    waits = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        waits.set()
        await never()
        raise AssertionError

    async def send(message: Any) -> None:
        pass

    task = asyncio.ensure_future(app(disk)(scope_of(), receive, send))
    await waits.wait()
    assert left(disk) != []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(disk) == []


async def test_storage_that_fails_is_told_without_its_place(
    disk: LocalFolder, caplog: pytest.LogCaptureFixture
) -> None:
    Path(disk.root).parent.joinpath("out").write_bytes(b"a file where the folder should be")
    answer = await post(app(disk), in_chunks(form(PURPOSE, file_part(LINES * 200)), 100_000))
    assert answer.status_code == 503
    assert answer.json()["error"] == {
        "message": "The file can't be stored just now; the log of Airflow's API server says why.",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert f"An upload can't be stored: {disk.uri}/{CONTENT}: can't write it" in caplog.text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("night.jsonl", "night.jsonl"),
        ("Straße 夜.jsonl", "Straße 夜.jsonl"),
        ("../../etc/passwd.jsonl", "passwd.jsonl"),
        ("/abs/x.jsonl", "x.jsonl"),
        ("C:\\temp\\x.jsonl", "x.jsonl"),
        ("..", ".."),
        ("a/", ""),
        ("", ""),
        ("a\x00b\r\nc\x7f.jsonl", "abc.jsonl"),
        ("a%22b%0D%0Ac.jsonl", 'a"bc.jsonl'),
        ("%2e%2e%2fx.jsonl", "%2e%2e%2fx.jsonl"),
        ("a\u202elnosj.exe.jsonl", "alnosj.exe.jsonl"),
        ("  x.jsonl  ", "x.jsonl"),
    ],
)
def test_names_are_cleaned(given: str, shown: str) -> None:
    assert shown_name(given.encode()) == shown


def test_a_name_in_another_encoding_is_shown_in_part() -> None:
    assert shown_name(b"\xff\xfestra\xdfe.jsonl") == "��stra�e.jsonl"


def test_a_long_name_keeps_its_suffix() -> None:
    assert shown_name(b"x" * 400 + b".jsonl") == "x" * (LONGEST_NAME - 6) + ".jsonl"
    assert shown_name(b"x." + b"y" * 400) == "x." + "y" * (LONGEST_NAME - 2)
