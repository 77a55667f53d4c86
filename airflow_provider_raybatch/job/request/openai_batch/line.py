# SPDX-License-Identifier: Apache-2.0
"""A line of an OpenAI batch file as a request.

A line chooses what is asked and how it is sampled, and nothing that the cluster reads: no chat template, no
adapter, no file and no address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    LINE_COLUMNS,
)
from airflow_provider_raybatch.contract.arguments.tools import checked_choice, schemas_of
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.media.values import DATA, image_in, url_of
from airflow_provider_raybatch.job.request.openai_batch.parameters import (
    MISSING,
    UNSUPPORTED,
    LineError,
    response_format,
    sampling_of_chat,
    sampling_of_completion,
    wrong,
)
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, ImageError, Request

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


_MOST_INPUTS = 2048
"""Of one line, as at OpenAI."""
_IGNORED_OF_TEXTS = frozenset({"user", "encoding_format", "dimensions"})


def request_of(row: Mapping[str, Any], spec: BatchInferenceSpec) -> Request:
    """The request of a line.

    :param row: its columns.
    :raises LineError: it asks for something that this job does not do.
    """
    for name in LINE_COLUMNS:
        if row.get(name) is None:
            kind = "an object" if name == "body" else "a text"
            raise LineError(name, f"the line needs {kind} here, and has none", MISSING)
    if row["method"] != "POST":
        raise wrong("method", "'POST'", row["method"])
    endpoints = ENDPOINTS[spec.model_task]
    if row["url"] not in endpoints:
        raise LineError(
            "url",
            f"this batch answers {' and '.join(map(repr, endpoints))}, and not {shown(row['url'])}",
            "invalid_url",
        )
    body = json.loads(row["body"])
    if not isinstance(body, dict):
        raise wrong("body", "an object", body)
    _check_model(body, spec)
    rest = {name: value for name, value in body.items() if name != "model"}
    if row["url"] == CHAT:
        return _chat(rest, spec)
    return _completion(rest, spec) if row["url"] == COMPLETIONS else _text(rest, spec)


def _check_model(body: Mapping[str, Any], spec: BatchInferenceSpec) -> None:
    if (name := body.get("model")) is None:
        raise LineError("model", "the body needs the name of the model, and has none", MISSING)
    served = spec.served_model_name or spec.model
    if name != served:
        raise LineError("model", f"this batch is answered by {served!r}, not {shown(name)}", "model_mismatch")


def _chat(body: dict[str, Any], spec: BatchInferenceSpec) -> Request:
    messages, images = chat_of(body.pop("messages", None), spec.no_images)
    _check_tools(body, spec)
    structured = body.pop("response_format", None)
    sampling = sampling_of_chat(body)
    if structured is not None:
        sampling |= response_format(structured)
        if spec.calls_tools and "structured_outputs" in sampling:
            raise LineError("response_format", "the job's tools constrain the response; remove it")
    return Request(messages=messages, sampling=sampling, images=images)


def _check_tools(body: dict[str, Any], spec: BatchInferenceSpec) -> None:
    """Take the tools out of a body; the job has them once, and its parser reads the calls."""
    tools, choice = body.pop("tools", None) or None, body.pop("tool_choice", None)
    body.pop("parallel_tool_calls", None)
    if not tools and choice == "none":
        choice = None
    if spec.tools is None:
        for name, value in (("tools", tools), ("tool_choice", choice)):
            if value is not None:
                raise LineError(
                    name,
                    "this batch calls no tools; the job's arguments tools and tool_call_parser name those "
                    "that all lines have",
                    UNSUPPORTED,
                )
        return
    if _known(tools) != _known(spec.tools):
        raise LineError("tools", "they are not those of the job, which all lines must have", UNSUPPORTED)
    try:
        choice = checked_choice(choice, list(schemas_of(spec.tools)))
    except ValueError as error:
        raise LineError("tool_choice", str(error)) from None
    if (None if choice == "auto" else choice) != spec.tool_choice:
        raise LineError("tool_choice", "it is not that of the job, which all lines must have", UNSUPPORTED)


def _known(tools: Any) -> Any:
    """Tools as the job's argument writes them."""
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return None
    return [
        {name: value for name, value in tool["function"].items() if value is not None}
        if isinstance(tool.get("function"), dict)
        else None
        for tool in tools
    ]


def _completion(body: dict[str, Any], spec: BatchInferenceSpec) -> Request:
    if spec.tools is not None:
        raise LineError("url", "the job has tools, which a raw prompt does not show", UNSUPPORTED)
    prompt = _one_text(body.pop("prompt", None), "prompt")
    return Request(prompt=prompt, sampling=sampling_of_completion(body, spec.sampling))


def _text(body: dict[str, Any], spec: BatchInferenceSpec) -> Request:
    texts = _inputs(body.pop("input", None), spec)
    if not all(text.strip() for text in texts):
        raise LineError("input", "it is blank, and a vector of no text means nothing")
    for name, value in body.items():
        if name not in _IGNORED_OF_TEXTS and value is not None:
            raise LineError(name[:100], "a batch takes no such parameter; remove it", UNSUPPORTED)
    of_job = spec.pooling.get("dimensions")
    for name, known in (("encoding_format", (None, "float", "base64")), ("dimensions", (None, of_job))):
        if body.get(name) not in known:
            raise wrong(name, f"one of {', '.join(map(repr, known[1:]))} in this batch", body[name])
    if len(texts) == 1:
        return Request(prompt=texts[0])
    return Request(messages=[{"role": "user", "content": text} for text in texts])


def _inputs(value: Any, spec: BatchInferenceSpec) -> list[str]:
    """The texts of a line, each to get a vector."""
    are_texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    if not (are_texts and len(value) > 1):
        return [_one_text(value, "input")]
    if len(value) > _MOST_INPUTS:
        raise wrong("input", f"a list of at most {_MOST_INPUTS:,} texts", value)
    if not spec.answers_lines:
        raise LineError(
            "input",
            "a row of the dataset has one vector; write a line for each text, or set destination_format to "
            "'openai_batch'",
            UNSUPPORTED,
        )
    return list(value)


def _one_text(value: Any, name: str) -> str:
    """A text, or that of a list of one."""
    if value is None:
        raise LineError(name, "the body needs a text here, and has none", MISSING)
    text = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(text, str):
        raise LineError(name, f"it must be one text, but it is {shown(value)}", UNSUPPORTED)
    if not text:
        raise LineError(name, "it is empty")
    return text
