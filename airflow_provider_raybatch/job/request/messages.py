# SPDX-License-Identifier: Apache-2.0
"""The messages of a chat in a column: as of OpenAI's API, as of ShareGPT, or a query with its documents.

Chat templates of rerankers know them by these roles, too. A chat gets the images of its row.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.media.values import count_in, images_of, taken
from airflow_provider_raybatch.job.request.row_text import not_blank
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, RenderError, Request

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
"""Types of a message's content parts that vLLM reads as text."""
_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
}
"""Role by ShareGPT's ``from``."""


def messages_of(value: Any, what: str) -> list[dict[str, Any]]:
    """The chat in a column's value: a list of messages, or that list as a JSON string.

    :raises RenderError: there is none.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RenderError(f"{what} is a string, but no JSON list of messages ({error})") from None
    if value is None:
        raise RenderError(f"{what} is null")
    if not isinstance(value, list):
        raise RenderError(f"{what} has no list of messages")
    if not value:
        raise RenderError(f"{what} has no message in it")
    messages = [_as_chat(_without_nulls(_with_objects(message)), what) for message in value]
    for message in messages:
        has_role = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not has_role or not {"content", "tool_calls"} & message.keys():
            raise RenderError(f"{what} has a message without a role or a content")
    return messages


def text_of(content: Any) -> str:
    """A message's content as one text; parts in OpenAI's form are joined by newlines, as in vLLM.

    :raises RenderError: a part is neither text nor :data:`IMAGE_PART`, which is left out.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RenderError(f"a message's content is {type(content).__name__}; give a text or a list of parts")
    return "\n".join(_text_of_part(part) for part in content if part != IMAGE_PART)


def _as_chat(message: Any, what: str) -> Any:
    """A message of ShareGPT with the names of a chat, without its other fields; any other value as it is.

    :param what: begins the sentence of an error.
    :raises RenderError: who said it is not known.
    """
    if not isinstance(message, dict) or "role" in message or "from" not in message:
        return message
    said_by = message["from"]
    if not isinstance(said_by, str) or said_by not in _ROLES:
        raise RenderError(f"{what} has a message from {said_by!r}, and only {', '.join(_ROLES)} have a role")
    return {"role": _ROLES[said_by], **({"content": message["value"]} if "value" in message else {})}


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in _TEXT_PARTS:
        raise RenderError(
            f"a message has a content part of type {kind!r}, and only text and images are sent to the model; "
            "leave it out"
        )
    text = part.get(kind if kind in {"refusal", "thinking"} else "text")
    if not isinstance(text, str):
        raise RenderError(f"a message has a content part of type {kind!r} without a text")
    return text


def _with_objects(value: Any) -> Any:
    """A value with a dict for each Arrow map: DuckDB and Spark write a chat as a list of maps."""
    if isinstance(value, list):
        inner = [_with_objects(one) for one in value]
        return dict(inner) if is_map(value) else inner
    if isinstance(value, tuple):
        return tuple(map(_with_objects, value))
    if isinstance(value, dict):
        return {name: _with_objects(inner) for name, inner in value.items()}
    return value


def is_map(value: Any) -> bool:
    """Whether a value was an Arrow map, which Python gets as a list of pairs; nothing else has tuples."""
    are_pairs = isinstance(value, list) and all(isinstance(one, tuple) and len(one) == 2 for one in value)
    return bool(value) and are_pairs


def _without_nulls(value: Any) -> Any:
    """A value without the nulls that Arrow adds to structs, except in the arguments of a tool call."""
    if isinstance(value, dict):
        return {
            name: inner if name == "arguments" else _without_nulls(inner)
            for name, inner in value.items()
            if inner is not None
        }
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


QUERY, DOCUMENT = "query", "document"
"""Roles of the messages."""


def pair_renderer(spec: BatchInferenceSpec) -> Callable[[Mapping[str, Any]], Request]:
    """The function that turns a row into a query with at least one document."""
    query, column = RowTemplate(str(spec.query)), spec.documents_column
    document = RowTemplate(spec.document or "")

    def render(row: Mapping[str, Any]) -> Request:
        texts = [not_blank(query.render(row), "the text of query")]
        if column is None:
            texts.append(not_blank(document.render(row), "the text of document"))
        else:
            texts += _documents(row.get(column), f"column {column!r}")
        roles = [QUERY, *[DOCUMENT] * (len(texts) - 1)]
        return Request([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])

    return render


def pair_of(request: Request) -> tuple[str, list[str]]:
    """The query, and its documents."""
    query, *documents = [str(message["content"]) for message in request.messages or ()]
    return query, documents


def _documents(value: Any, what: str) -> list[str]:
    """The documents in a column's value: a list of texts, or that list as a JSON string.

    :raises RenderError: there is none.
    """
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # the message below says what it is instead
            value = json.loads(value)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise RenderError(f"{what} has no list of texts; for one text a row, use document")
    for number, one in enumerate(value):
        not_blank(one, f"document {number} in the list of {what}")
    return value


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
