# SPDX-License-Identifier: Apache-2.0
"""The bodies of good answers: a chat completion, a completion, or vectors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from airflow_provider_raybatch.contract.text import hex_digest

_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})
_NO_LOGPROB = -9999.0
"""For a token whose log probability is minus infinity, which JSON has not; as vLLM's server writes it."""
_PARTIAL = "\ufffd"
"""In the text of a token that holds a part of a character."""


def chat_completion(name: str, created: int, body: Mapping[str, Any], output: Mapping[str, Any]) -> Any:
    """The answer to a chat.

    :param name: tells this answer from all others.
    :param created: epoch seconds.
    :param body: of the line.
    :param output: the row's output columns.
    """
    asked = bool(body.get("logprobs"))
    most = body.get("top_logprobs") or 0
    choices = [
        _choice(name, place, one, most if asked else None) for place, one in enumerate(output["completions"])
    ]
    return {"id": f"chatcmpl-{name}", "object": "chat.completion", **_rest(created, body, choices, output)}


def completion(name: str, created: int, body: Mapping[str, Any], output: Mapping[str, Any]) -> Any:
    """The answer to a raw prompt; parameters as of :func:`chat_completion`."""
    most = body.get("logprobs")
    choices = [
        {
            "index": place,
            "text": one["text"],
            "logprobs": None if most is None else _old_logprobs(one.get("logprobs") or (), most),
            "finish_reason": _reason(one),
        }
        for place, one in enumerate(output["completions"])
    ]
    return {"id": f"cmpl-{name}", "object": "text_completion", **_rest(created, body, choices, output)}


def embeddings(body: Mapping[str, Any], output: Mapping[str, Any]) -> Any:
    """The vector of each text, as a list of numbers or, if the line asks for it, in Base64."""
    texts = len(body["input"]) if isinstance(body["input"], list) else 1
    packs = body.get("encoding_format") == "base64"
    vectors = np.asarray(output["embedding"], "<f4").reshape(texts, -1)
    found = [base64.b64encode(one.tobytes()).decode() if packs else one.tolist() for one in vectors]
    tokens = output["input_tokens"]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(found)
        ],
        "model": body["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _choice(name: str, place: int, one: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{hex_digest(f'{name}-{place}-{number}')[:24]}",
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for number, call in enumerate(one.get("tool_calls") or ())
    ]
    message = {"role": "assistant", "content": one["text"] or (None if calls else ""), "refusal": None}
    if calls:
        message["tool_calls"] = calls
    if one.get("reasoning") is not None:
        message["reasoning_content"] = one["reasoning"]
    logprobs = None
    if most is not None:
        tokens = [_token(token, most) for token in one.get("logprobs") or ()]
        logprobs = {"content": tokens, "refusal": None}
    reason = "tool_calls" if calls else _reason(one)
    return {"index": place, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _token(token: Mapping[str, Any], most: int) -> dict[str, Any]:
    return {**_likely(token), "top_logprobs": [_likely(one) for one in token["top_logprobs"][:most]]}


def _likely(token: Mapping[str, Any]) -> dict[str, Any]:
    text = token["token"] or ""
    return {
        "token": text,
        "logprob": _finite(token["logprob"]),
        "bytes": None if _PARTIAL in text else list(text.encode()),
    }


def _old_logprobs(tokens: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """In the form of the older endpoint."""
    texts = [token["token"] or "" for token in tokens]
    ends = np.cumsum([0, *map(len, texts)])[:-1].tolist()
    return {
        "tokens": texts,
        "token_logprobs": [_finite(token["logprob"]) for token in tokens],
        "top_logprobs": [
            {one["token"] or "": _finite(one["logprob"]) for one in token["top_logprobs"][:most]}
            for token in tokens
        ],
        "text_offset": ends,
    }


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and np.isfinite(logprob) else _NO_LOGPROB


def _reason(one: Mapping[str, Any]) -> str:
    return one["finish_reason"] if one["finish_reason"] in _REASONS else "stop"


def _rest(
    created: int, body: Mapping[str, Any], choices: list[dict[str, Any]], output: Mapping[str, Any]
) -> dict[str, Any]:
    return {"created": created, "model": body["model"], "choices": choices, "usage": _usage(output)}


def _usage(output: Mapping[str, Any]) -> dict[str, Any]:
    asked, made = output["input_tokens"], output["output_tokens"]
    usage = {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
    usage["prompt_tokens_details"] = {"cached_tokens": output["cached_tokens"]}
    thought = [one["reasoning_tokens"] for one in output["completions"] if one.get("reasoning_tokens")]
    return {**usage, "completion_tokens_details": {"reasoning_tokens": sum(thought)}} if thought else usage
