# SPDX-License-Identifier: Apache-2.0
"""Images of columns and of content parts: what is content, what a reference, and what neither."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.media.values import (
    count_in,
    holds_bytes,
    images_of,
    may_hold_images,
    taken,
)
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError
from tests.support.approved import AssertSentences

CONTENT = b"\x89PNG\r\n\x1a\n and more"
VERSION = f"blake2b:{hashlib.blake2b(CONTENT, digest_size=16).hexdigest()}"
HELD = Image(content=CONTENT, version=VERSION)
DATA = f"data:image/png;base64,{base64.b64encode(CONTENT).decode()}"


def refusal(value: Any) -> str:
    with pytest.raises(ImageError) as caught:
        images_of(value, "column 'photo'")
    return str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        CONTENT,
        bytearray(CONTENT),
        memoryview(CONTENT),
        {"bytes": CONTENT, "path": "cat.png"},
        {"bytes": CONTENT, "path": None},
        {"bytes": CONTENT},
        DATA,
        DATA.replace("data:image/png", "DATA:image/PNG;name=a"),
        {"bytes": None, "path": DATA},
    ],
)
def test_content_has_its_version(value: Any) -> None:
    assert images_of(value, "column 'photo'") == [HELD]
    assert images_of([value, value], "column 'photo'") == [HELD, HELD]


@pytest.mark.parametrize(
    "uri", ["s3://b/cat.png", "/data/cat.png", "file:///data/cat.png", "https://a.com/cat.png?x=1"]
)
def test_references_are_kept_as_they_are(uri: str) -> None:
    assert images_of(uri, "x") == [Image(uri=uri)]
    assert images_of({"bytes": None, "path": uri}, "x") == [Image(uri=uri)]
    assert images_of(json.dumps([uri, "/b"]), "x") == [Image(uri=uri), Image(uri="/b")]


@pytest.mark.parametrize("value", [None, "", [], "[]", {"bytes": None, "path": None}, {"path": ""}])
def test_row_may_have_no_image(value: Any) -> None:
    assert images_of(value, "x") == []


def test_other_value_is_refused_in_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(refusal)


TEXT = {"type": "text", "text": "look"}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_images_come_in_the_order_of_their_parts() -> None:
    chat = [
        {"role": "system", "content": "Be brief"},
        user({"type": "image_url", "image_url": {"url": "s3://b/1.png", "detail": "high"}}, TEXT),
        {"role": "assistant", "tool_calls": []},
        user("and", {"type": "image"}, {"type": "image_url", "image_url": "/3.png"}),
    ]
    before = copy.deepcopy(chat)
    messages, images = taken(chat)
    assert images == [Image(uri="s3://b/1.png"), None, Image(uri="/3.png")]
    assert messages == [chat[0], user(IMAGE_PART, TEXT), chat[2], user("and", IMAGE_PART, IMAGE_PART)]
    assert chat == before
    assert count_in(messages) == 3


def test_chat_of_texts_stays_as_it_is() -> None:
    chat = [user(TEXT, "more"), {"role": "user", "content": "a"}, {"role": "user", "content": None}]
    messages, images = taken(chat)
    assert (messages, images) == (chat, [])
    assert all(made is given for made, given in zip(messages, chat, strict=True))


def test_part_without_an_image_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **part: taken([user(TEXT, part)]), ImageError)


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
HOLD_CONTENT = [pa.binary(), pa.large_binary(), pa.binary(4), STRUCT]
REFERENCES = [pa.string(), pa.large_string(), pa.struct([("path", pa.string())]), pa.null()]
OTHERS = [pa.int64(), pa.bool_(), pa.float32(), pa.struct([("x", pa.binary())]), pa.timestamp("s")]


@pytest.mark.parametrize(
    "kind", [*HOLD_CONTENT, *map(pa.list_, HOLD_CONTENT), pa.large_list(STRUCT)], ids=str
)
def test_content_is_told_from_references(kind: pa.DataType) -> None:
    assert holds_bytes(kind)
    assert may_hold_images(kind)


@pytest.mark.parametrize("kind", [*REFERENCES, *map(pa.list_, REFERENCES)], ids=str)
def test_references_are_images_without_bytes(kind: pa.DataType) -> None:
    assert not holds_bytes(kind)
    assert may_hold_images(kind)


@pytest.mark.parametrize("kind", [*OTHERS, *map(pa.list_, OTHERS), pa.list_(pa.list_(STRUCT))], ids=str)
def test_numbers_and_junk_are_no_images(kind: pa.DataType) -> None:
    assert not holds_bytes(kind)
    assert not may_hold_images(kind)
