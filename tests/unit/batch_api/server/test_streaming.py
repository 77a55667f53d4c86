# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads of real clients over real sockets."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.forms import CONTENT, CONTENT_TYPE, PURPOSE, app, file_part, form, served

LINES = b"".join(b'{"custom_id": "%d"}\n' % number for number in range(500_000))


@pytest.fixture
def url(disk: LocalFolder) -> Iterator[str]:
    """The address of a server that stores on a disk."""
    with served(app(disk, 20_000_000)) as url:
        yield url


def left(disk: LocalFolder) -> list[str]:
    """Unlike a glob, a walk goes on where a folder is removed meanwhile."""
    return [name for _, _, files in os.walk(disk.root) for name in files]


@pytest.mark.parametrize(
    ("purpose", "name", "content", "status"),
    [
        ("assistants", "x.jsonl", LINES, 400),
        ("batch", "x.txt", LINES, 400),
        ("batch", "x.jsonl", LINES * 3, 413),
    ],
)
def test_a_refused_client_reads_the_answer(
    url: str, disk: LocalFolder, purpose: str, name: str, content: bytes, status: int
) -> None:
    """Although the server has refused it long before it has sent all; its connection stays usable."""
    with httpx.Client(base_url=url) as client:
        for _ in range(2):
            answer = client.post("/v1/files", data={"purpose": purpose}, files={"file": (name, content)})
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"
    assert left(disk) == []


def test_a_connection_that_breaks_leaves_nothing(url: str, disk: LocalFolder) -> None:
    body = form(PURPOSE, file_part(LINES))
    headers = f"Host: x\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0))) as client:
        client.sendall(f"POST /v1/files HTTP/1.1\r\n{headers}".encode() + body[: len(body) // 2])
        while not left(disk):
            time.sleep(0.01)
    while left(disk):
        time.sleep(0.01)
    assert disk.list() == []


def test_a_body_that_stops_is_no_whole_file(url: str, disk: LocalFolder) -> None:
    """A second part is missing in storage: the client must not take the first for all."""
    disk.write(CONTENT, LINES)
    with httpx.Client(base_url=url) as client, client.stream("GET", "/v1/files/file-2/content") as answer:
        assert answer.headers["content-length"] == str(len(LINES) + 5)
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed connection"):
            answer.read()
