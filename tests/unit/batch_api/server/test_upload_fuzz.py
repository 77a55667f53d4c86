# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent as an upload: it is stored whole, or refused in one sentence and leaves nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.forms import BOUNDARY, CONTENT, CONTENT_TYPE, EXPIRES, PURPOSE, app, file_part, form, post

ROUNDS = 60
"""Bodies of each kind."""
LIMIT = 200_000
Part = tuple[bytes, bytes]
Made = tuple[bytes, str]
"""A body and its content type."""

NAMES = [
    b"x.jsonl",
    b"../../../../tmp/x.jsonl",
    b"/etc/x.jsonl",
    b"..\\..\\x.jsonl",
    b"C:\\x.jsonl",
    b"\xff\xfe\xe9.jsonl",
    "夜.jsonl".encode("utf-16"),
    b"x\x00y.jsonl",
    b"%2e%2e%2fx.jsonl",
    b"x" * 3000 + b".jsonl",
    b"",
    b'a\\"b.jsonl',
    b'a"; name="purpose',
    b"x.jsonl\r\nX-Header: y",
]
TYPES = [
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/mixed; boundary=" + BOUNDARY.decode(),
    "multipart/form-data",
    "multipart/form-data; boundary",
    'multipart/form-data; boundary=""',
    "multipart/form-data; boundary=" + "x" * 300,
    'multipart/form-data; boundary="' + BOUNDARY.decode() + '"',
    "multipart/form-data; boundary=other; boundary=" + BOUNDARY.decode(),
    "multipart/form-data;;;boundary=" + BOUNDARY.decode(),
    "multipart/form-data; boundary*=utf-8''" + BOUNDARY.decode(),
    "MULTIPART/FORM-DATA; BOUNDARY=" + BOUNDARY.decode(),
    "multipart/form-data; charset=nonsense; boundary=" + BOUNDARY.decode(),
    "multipart/form-data; boundary=\xff\xfe",
]


def some_content(chance: random.Random) -> bytes:
    kinds: Sequence[Callable[[], bytes]] = [
        lambda: b"",
        lambda: b'{"a": 1}\n' * chance.randrange(1, 2000),
        lambda: chance.randbytes(chance.randrange(3000)),
        lambda: (b"\r\n--" + BOUNDARY)[: chance.randrange(20)] * chance.randrange(50),
        lambda: b"\r" * chance.randrange(5000),
        lambda: b"x" * (LIMIT + chance.randrange(-10, 10)),
    ]
    return chance.choice(kinds)()


def some_parts(chance: random.Random) -> list[Part]:
    parts = [
        PURPOSE,
        *chance.choice([(), EXPIRES]),
        file_part(some_content(chance), chance.choice(NAMES[:11])),
    ]
    chance.shuffle(parts)
    return parts


def broken_bytes(chance: random.Random) -> Made:
    body = bytearray(form(*some_parts(chance)))
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(min(len(body), 700))
        piece = chance.choice([
            b"",
            b"\r",
            b"\n",
            b"\r\n",
            b"--",
            b"\x00",
            BOUNDARY,
            b"\xff",
            b":",
            b'"',
            b";",
        ])
        body[place : place + chance.randrange(4)] = piece
    return bytes(body), CONTENT_TYPE


def wrong_types(chance: random.Random) -> Made:
    return form(*some_parts(chance)), chance.choice(TYPES)


def repeated_and_missing(chance: random.Random) -> Made:
    parts = [*some_parts(chance), *some_parts(chance)]
    return form(*chance.choices(parts, k=chance.randrange(6))), CONTENT_TYPE


def huge_headers(chance: random.Random) -> Made:
    header = chance.choice([b"X-A: ", b"Content-Type: ", b"X" * 5000, b"Content-Disposition: ", b": "])
    long = PURPOSE[0] + b"\r\n" + header + b"y" * chance.choice([10, 5000, 100_000])
    many = PURPOSE[0] + b"\r\nX-A: y" * chance.choice([3, 9, 5000])
    return form((chance.choice([long, many]), b"batch"), *some_parts(chance)), CONTENT_TYPE


def nested(chance: random.Random) -> Made:
    inner = form(*some_parts(chance), boundary=chance.choice([BOUNDARY, b"inner"]))
    kind = b"\r\nContent-Type: multipart/" + chance.choice([b"mixed", b"form-data"]) + b"; boundary=inner"
    return form(PURPOSE, (file_part(b"")[0] + chance.choice([b"", kind]), inner)), CONTENT_TYPE


def strange_dispositions(chance: random.Random) -> Made:
    name = chance.choice(NAMES)
    disposition = chance.choice([
        b"form-data; name=file; filename=" + name,
        b"form-data; name=\"file\"; filename*=utf-8''" + name,
        b'form-data; name="file"; filename="' + name + b"\"; filename*=utf-8''other.jsonl",
        b'form-data; name="file"; filename="' + name,
        b'attachment; name="file"; filename="' + name + b'"',
        b'form-data; filename="' + name + b'"',
        b'form-data; name="' + name + b'"; filename="x.jsonl"',
        b'form-data; name="file"; name="purpose"; filename="' + name + b'"',
        b'FORM-DATA; NAME="file"; FILENAME="x.jsonl"',
        b"",
        b"\xff" * 30,
    ])
    return form(PURPOSE, (disposition, some_content(chance))), CONTENT_TYPE


KINDS: Sequence[Callable[[random.Random], Made]] = [
    broken_bytes,
    wrong_types,
    repeated_and_missing,
    huge_headers,
    nested,
    strange_dispositions,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_body_is_stored_whole_or_refused(
    kind: Callable[[random.Random], Made], disk: LocalFolder
) -> None:
    api, refused = app(disk, LIMIT), 0
    for seed in range(ROUNDS):
        chance = random.Random(f"{kind.__name__} {seed}")
        body, content_type = kind(chance)
        size = chance.choice([1 + len(body) // 50, 65_536])
        chunks = [body[start : start + size] for start in range(0, len(body), size)]
        headers = {"Content-Type": content_type.encode("latin-1")}
        answer = await post(api, chunks, headers)
        found = [path for path in Path(disk.root).parent.rglob("*") if path.is_file()]
        if answer.status_code == 200:
            upload = answer.json()
            assert found == [Path(disk.root, CONTENT)], seed
            assert upload["bytes"] == found[0].stat().st_size <= LIMIT
            assert upload["filename"].isprintable()
            assert not set(upload["filename"]) & set("/\\")
            assert len(upload["filename"]) <= 255
            found[0].unlink()
        else:
            refused += 1
            assert answer.status_code in {400, 413}, (seed, answer.text)
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert 10 < len(error["message"]) < 250
            assert error["message"].isprintable(), seed
            assert found == [], seed
    assert refused
