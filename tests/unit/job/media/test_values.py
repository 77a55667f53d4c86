# SPDX-License-Identifier: Apache-2.0
"""Values of columns as images: what is content, what a reference, and what neither."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from airflow_provider_raybatch.job.media.values import images_of
from airflow_provider_raybatch.job.row import Image, ImageError
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
