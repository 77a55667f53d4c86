# SPDX-License-Identifier: Apache-2.0
"""The images of a row's request: those in its chat, and those of the columns in `images`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.media.values import count_in, images_of, taken
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, RenderError, Request

PlaceImages: TypeAlias = Callable[[Request, Mapping[str, Any]], Request]


def image_placer(spec: BatchInferenceSpec, reads_columns: bool = True) -> PlaceImages | None:
    """The function that gives a request the images of its row; ``None`` where no row can have any.

    Those of the columns fill the ``{"type": "image"}`` parts of a chat, in order. Without such parts, they
    come before the text of its first user message. A raw prompt has the model's own placeholders.

    :param reads_columns: whether rows have the columns in `images`. Without them a chat has its places, and
        the request no image for each.
    """
    if not (spec.images or spec.messages_column or spec.prompt_function):
        return None  # its chats are texts
    columns, why_none = (spec.images if reads_columns else []), spec.no_images

    def place(request: Request, row: Mapping[str, Any]) -> Request:
        given = [one for name in columns for one in images_of(row.get(name), f"column {name!r}")]
        if request.messages is None:
            return replace(request, images=tuple(given)) if given else request
        messages, found = taken(request.messages)
        if found and why_none:
            raise RenderError(f"a message has an image, and {why_none}")
        if not reads_columns:
            images = [one for one in found if one is not None]
        elif None in found:
            images = _filled(found, given)
        elif given:
            messages, images = _before_text(messages, found, given)
        else:
            images = [one for one in found if one is not None]
        return replace(request, messages=messages, images=tuple(images)) if found or given else request

    return place


def _filled(found: Sequence[Image | None], given: Sequence[Image]) -> list[Image]:
    places = sum(one is None for one in found)
    if places != len(given):
        raise RenderError(
            f"the chat has {count_of(places, 'part')} of type 'image', and the columns in images have "
            f"{count_of(len(given), 'image')} for them; write one part for each image, or none at all"
        )
    rest = iter(given)
    return [next(rest) if one is None else one for one in found]


def _before_text(
    messages: list[Any], found: Sequence[Image | None], given: Sequence[Image]
) -> tuple[list[Any], list[Image]]:
    number = next((place for place, one in enumerate(messages) if one.get("role") == "user"), None)
    if number is None:
        raise RenderError(
            "the chat has no message of the role 'user' for the images; write parts of type 'image' where "
            "they belong"
        )
    content = messages[number].get("content")
    if not isinstance(content, list):
        content = [{"type": "text", "text": content}] if content else []
    parts = [*(dict(IMAGE_PART) for _ in given), *content]
    earlier = count_in(messages[:number])
    in_chat = [one for one in found if one is not None]
    images = [*in_chat[:earlier], *given, *in_chat[earlier:]]
    return [*messages[:number], {**messages[number], "content": parts}, *messages[number + 1 :]], images
