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


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("a dog", "column 'photo' has the text 'a dog', which is neither an absolute path nor a URI; give"),
        ("cat.png", "column 'photo' has the text 'cat.png', which is neither"),
        (
            "gs://b/cat.png",
            "column 'photo' has the reference 'gs://b/cat.png', and images are read from s3://",
        ),
        ("http://u:p@a.com/x", "column 'photo' has the reference 'http://a.com/x', and images are read"),
        (7, "column 'photo' has 7, which is not an image; give bytes, a struct with bytes, or a reference"),
        (True, "column 'photo' has True, which is not an image"),
        ({"x": 1}, "column 'photo' has {'x': 1}, which is not an image"),
        (b"", "column 'photo' has an image without bytes; write null where there is none"),
        ([CONTENT, None], "column 'photo' has a list whose image 2 is empty; remove it from the list"),
        ([CONTENT, 5], "column 'photo', image 2 of 2, has 5, which is not an image"),
        ([[CONTENT]], "column 'photo', image 1 of 1, has ["),
        ("[a", "column 'photo' has a text that begins as a list and is not JSON; write a JSON list"),
        ("[" * 100_000, "column 'photo' has a text that begins as a list and is not JSON"),
        ({"bytes": "AAAA"}, "column 'photo' has 'bytes' that are str; write them as binary"),
        ({"bytes": None, "path": 5}, "column 'photo' has the path 5, which is not text; write a reference"),
        ({"bytes": None, "path": "cat.png"}, "column 'photo' has the path 'cat.png' and no bytes, and a"),
        ("/9j/" + "A" * 200, "column 'photo' has Base64 without its type; write 'data:image/jpeg;base64,'"),
        ("iVBORw0KGgo" + "A" * 200, "column 'photo' has Base64 without its type; write 'data:image/png;base"),
        ("data:text/plain;base64,AAAA", "column 'photo' has a data: URI that begins with 'data:text/plain;"),
        ("data:image/png,AAAA", "column 'photo' has a data: URI that begins with 'data:image/png'; write an"),
        ("data:image/png;base64,AA%A", "column 'photo' has a data: URI that is not Base64"),
        ("data:image/png;base64,", "column 'photo' has an image without bytes"),
    ],
)
def test_other_value_is_refused_in_one_sentence(value: Any, sentence: str) -> None:
    text = refusal(value)
    assert text.startswith(sentence)
    assert "\n" not in text
    assert len(text) < 400
