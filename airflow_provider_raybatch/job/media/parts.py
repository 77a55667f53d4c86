# SPDX-License-Identifier: Apache-2.0
"""Content parts of messages that stand for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_raybatch.job.media.values import image_at
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError

WHAT = "a content part of type 'image_url'"
_OF_RESPONSES = "input_image"
_KINDS = frozenset({"image", "image_url", _OF_RESPONSES})


def taken(messages: Sequence[Any]) -> tuple[list[Any], list[Image | None]]:
    """The chat with an :data:`IMAGE_PART` for each image, and the images in order.

    :param messages: with parts in OpenAI's form, ``{"type": "image_url", "image_url": {"url": ...}}``, or
        with the URL itself as vLLM takes it; or with ``{"type": "image"}``. They stay as they are.
    :returns: ``None`` in place of an image of the last form, which another column has.
    :raises ImageError: a part is not one of these.
    """
    images: list[Image | None] = []
    return [_taken(message, images) for message in messages], images


def count_in(messages: Sequence[Any]) -> int:
    """How many images a chat has that :func:`taken` has made."""
    contents = (message.get("content") for message in messages)
    return sum(content.count(IMAGE_PART) for content in contents if isinstance(content, list))


def url_of(part: dict[str, Any]) -> str:
    """What a part of type ``image_url`` names; `detail` is a hint that no open model takes.

    :raises ImageError: it names nothing.
    """
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url:
        raise ImageError(f"{WHAT} has no URL; write it as {{'image_url': {{'url': '...'}}}}")
    return url


def _taken(message: Any, images: list[Image | None]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return message
    parts = []
    for part in content:
        if _is_image(part):
            images.append(_image(part))
            part = dict(IMAGE_PART)
        parts.append(part)
    return {**message, "content": parts}


def _is_image(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _KINDS


def _image(part: dict[str, Any]) -> Image | None:
    if part["type"] == _OF_RESPONSES:
        raise ImageError(
            f"a content part of type {_OF_RESPONSES!r} is of another API; write it as {{'type': 'image_url', "
            "'image_url': {'url': '...'}}"
        )
    if part["type"] == "image_url":
        return image_at(url_of(part), WHAT)
    if part != IMAGE_PART:
        others = ", ".join(repr(name) for name in part if name != "type")[:100]
        raise ImageError(
            f"a content part of type 'image' has {others}, and it only marks the place of an image of the "
            "columns in images; write an image in the chat as a part of type 'image_url'"
        )
    return None
