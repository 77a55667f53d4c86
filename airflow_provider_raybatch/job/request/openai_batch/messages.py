# SPDX-License-Identifier: Apache-2.0
"""The chat of a body: texts and images, of roles and fields that chat templates know."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.job.media.values import DATA, image_in, url_of
from airflow_provider_raybatch.job.request.openai_batch.parameters import (
    MISSING,
    UNSUPPORTED,
    LineError,
    wrong,
)
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""OpenAI's roles, each with that of open models' templates."""
_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal"})
_OF_ANSWERS = frozenset({"annotations", "reasoning", "reasoning_content"})
"""What an assistant's message may have besides: OpenAI, vLLM's server or this job wrote it as an answer."""
_NAMES = ("name", "tool_call_id", "refusal", "reasoning", "reasoning_content")


def chat_of(messages: Any, no_images: str = "") -> tuple[list[dict[str, Any]], tuple[Image, ...]]:
    """The messages as chat templates get them, and their images in order.

    :param no_images: why there can't be any; empty where there can.
    :raises LineError: one is not a message of texts, and of images whose content it has.
    """
    if messages is None:
        raise LineError("messages", "a chat needs them, and the body has none", MISSING)
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "a list of at least one message", messages)
    chat, images = [], []
    for place, one in enumerate(messages):
        message, found = _message(f"messages.{place}", one, no_images)
        chat.append(message)
        images += found
    return chat, tuple(images)


def _message(where: str, message: Any, no_images: str) -> tuple[dict[str, Any], list[Image]]:
    if not isinstance(message, dict):
        raise wrong(where, "a message, an object", message)
    given = {
        name: value
        for name, value in message.items()
        if value is not None and (value != [] or name == "content")
    }
    role = given.get("role")
    for name in given:
        if name not in _FIELDS and not (role == "assistant" and name in _OF_ANSWERS):
            raise LineError(f"{where}.{name[:100]}", "a message takes no such field; remove it", UNSUPPORTED)
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{where}.role", " or ".join(map(repr, _ROLES)), role)
    for name in _NAMES:
        if not isinstance(given.get(name, ""), str):
            raise wrong(f"{where}.{name}", "a text", given[name])
    if role == "assistant":
        _make_askable(given)
    calls = given.get("tool_calls")
    if calls is not None:
        given["tool_calls"] = _calls(f"{where}.tool_calls", calls, role)
    elif "content" not in given:
        raise LineError(f"{where}.content", "a message needs a content", MISSING)
    images: list[Image] = []
    if "content" in given:
        given["content"] = _content(f"{where}.content", given["content"], images)
    if images and (no_images or role != "user"):
        why = no_images or f"messages of the role {role!r} have none; move it to one of the user"
        raise LineError(f"{where}.content", f"it has an image, and {why}", UNSUPPORTED)
    return {**given, "role": _ROLES[role]}, images


def _make_askable(answer: dict[str, Any]) -> None:
    """Leave in an answer what vLLM's server shows to templates, under its names."""
    answer.pop("annotations", None)
    if (thought := answer.pop("reasoning_content", None)) is not None:
        answer.setdefault("reasoning", thought)
    if "content" not in answer and "tool_calls" not in answer:
        answer["content"] = answer.pop("refusal", "")


def _content(where: str, content: Any, images: list[Image]) -> Any:
    """The content as chat templates get it.

    :param images: gets those in it.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong(where, "a text or a list of parts", content)
    return [_part(f"{where}.{place}", part, images) for place, part in enumerate(content)]


def _part(where: str, part: Any, images: list[Image]) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url":
        images.append(_image(f"{where}.image_url", part))
        return dict(IMAGE_PART)
    if kind not in ("text", "refusal"):
        raise LineError(
            f"{where}.type",
            "only parts of type 'text' and 'image_url' are sent to the model, and this one has "
            f"{kind!r:.100}",
            UNSUPPORTED,
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise wrong(f"{where}.{kind}", "a text", text)
    return {"type": "text", "text": text}


def _image(where: str, part: dict[str, Any]) -> Image:
    try:
        url = url_of(part)
        if url[: len(DATA)].lower() != DATA:
            raise LineError(
                f"{where}.url",
                "a batch reads no address; write the image itself as data:image/png;base64,...",
                UNSUPPORTED,
            )
        return image_in(url, "it")
    except ImageError as error:
        raise LineError(f"{where}.url", str(error)) from None


def _calls(where: str, calls: Any, role: str) -> list[dict[str, Any]]:
    if role != "assistant" or not isinstance(calls, list) or not calls:
        raise wrong(where, "a list of calls in a message of the assistant", calls)
    return [_call(f"{where}.{place}", call) for place, call in enumerate(calls)]


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise wrong(where, "a call of a function", call)
    name, arguments, number = function.get("name"), function.get("arguments", "{}"), call.get("id", "")
    if not all(isinstance(one, str) for one in (name, arguments, number)):
        raise wrong(where, "a call whose id, name and arguments are texts", call)
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
