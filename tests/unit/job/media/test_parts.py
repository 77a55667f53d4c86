# SPDX-License-Identifier: Apache-2.0
"""Content parts that stand for images, in each form that datasets have."""

from __future__ import annotations

import copy
from typing import Any

from airflow_provider_raybatch.job.media.parts import count_in, taken
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError
from tests.support.approved import AssertSentences

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
