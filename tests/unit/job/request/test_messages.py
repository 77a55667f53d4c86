# SPDX-License-Identifier: Apache-2.0
"""Rows become requests with images: which image stands where, and what fails its row."""

from __future__ import annotations

import base64
import json
from typing import Any

from airflow_provider_raybatch.contract.row_template import FilledTemplate
from airflow_provider_raybatch.job.request.messages import text_of
from airflow_provider_raybatch.job.request.render import needed_columns, render_all, renderer
from airflow_provider_raybatch.job.request.row_text import SpecialTokens, texts_of, with_texts
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, Request, RowFailure
from tests.support.approved import AssertSentences
from tests.support.specs import spec

PLACE = dict(IMAGE_PART)
CHAT = {"messages_column": "chat"}


def rendered(row: dict[str, Any], **fields: Any) -> Request | RowFailure:
    (made,) = render_all(renderer(spec(**fields)), [row])
    return made


def asked(row: dict[str, Any], **fields: Any) -> Request:
    made = rendered(row, **fields)
    assert isinstance(made, Request), made
    return made


def failed(row: dict[str, Any], **fields: Any) -> str:
    made = rendered(row, **fields)
    assert isinstance(made, RowFailure)
    return f"{made.step}: {made.reason}"


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def uris(request: Request) -> list[str]:
    return [image.uri or image.content.decode() for image in request.images]


def test_images_of_columns_come_before_the_text() -> None:
    made = asked({"b": ["/1", "/2"], "a": b"3", "text": "hi"}, images=["b", "a"], system_prompt="Be brief")
    assert made.messages == [
        {"role": "system", "content": "Be brief"},
        user(PLACE, PLACE, PLACE, text("Say hi")),
    ]
    assert uris(made) == ["/1", "/2", "3"]
    (content,) = [message["content"] for message in made.messages or () if message["role"] == "user"]
    assert isinstance(content[-1]["text"], FilledTemplate)  # what is the row's is known as before


def test_images_fill_the_places_of_a_chat_in_order() -> None:
    chat = [user(text("first"), {"type": "image"}), user({"type": "image"}, text("second"))]
    for value in (chat, json.dumps(chat)):
        made = asked({"chat": value, "a": "/1", "b": "/2"}, images=["a", "b"], **CHAT)
        assert made.messages == [user(text("first"), PLACE), user(PLACE, text("second"))]
        assert uris(made) == ["/1", "/2"]


def test_images_of_chat_and_columns_keep_their_order() -> None:
    own = {"type": "image_url", "image_url": {"url": "/own"}}
    system = {"role": "system", "content": [text("See"), own]}
    made = asked({"chat": [system, user(text("hi"), own)], "a": "/1"}, images="a", **CHAT)
    assert made.messages == [
        {"role": "system", "content": [text("See"), PLACE]},
        user(PLACE, text("hi"), PLACE),
    ]
    assert uris(made) == ["/own", "/1", "/own"]


def test_chat_with_images_of_its_own_needs_no_column() -> None:
    url = "data:image/png;base64," + base64.b64encode(b"1").decode()
    made = asked({"chat": [user({"type": "image_url", "image_url": {"url": url}}, text("hi"))]}, **CHAT)
    assert made.messages == [user(PLACE, text("hi"))]
    assert [image.content for image in made.images] == [b"1"]
    assert "AAA" not in made.as_json()
    assert json.loads(made.as_json())["images"] == [{"bytes": 1, "version": made.images[0].version}]


def test_raw_prompt_has_placeholders_of_its_own() -> None:
    made = asked({"p": "<image> hi", "a": "/1"}, prompt_column="p", images="a")
    assert (made.prompt, made.images) == ("<image> hi", (Image(uri="/1"),))


def test_row_without_images_is_a_row_of_text() -> None:
    plain = asked({"text": "hi"})
    assert asked({"text": "hi", "a": None, "b": []}, images=["a", "b"]) == plain
    assert asked({"text": "hi"}, images=["a"]) == plain


def test_wrong_images_fail_their_row(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda row, fields: failed(row, **fields))


def test_columns_of_images_are_read() -> None:
    assert set(needed_columns(spec(images=["a", "b"])) or ()) == {"text", "a", "b"}
    assert needed_columns(spec(images="a", prompt_function="m:f")) is None


def test_request_of_a_dataset_row_has_places_alone() -> None:
    """A dataset has no bytes of images, and a report shows what was asked."""
    given = spec(images="a", **CHAT)
    (made,) = render_all(
        renderer(given, reads_images=False), [{"chat": [user({"type": "image"}, text("hi"))]}]
    )
    assert isinstance(made, Request)
    assert (made.messages, made.images) == ([user(PLACE, text("hi"))], ())


def test_place_of_an_image_is_no_text_of_its_row() -> None:
    made = asked({"text": "an image", "a": "/1"}, images="a", prompt="{row.text}")
    assert "image" not in list(texts_of(made))
    changed = with_texts(made, str.upper)
    assert changed.messages == [{"role": "USER", "content": [PLACE, {"type": "TEXT", "text": "AN IMAGE"}]}]
    escaped = SpecialTokens(["image"]).escaped(made)
    assert escaped.messages == [user(PLACE, text("an i mage"))]
    assert text_of([PLACE, text("hi"), PLACE, "there"]) == "hi\nthere"
