# SPDX-License-Identifier: Apache-2.0
"""The columns of OpenAI's output files, whatever the first of their lines have.

Arrow takes the columns of JSON from the first bytes that it reads. Answers differ: most have null `logprobs`
where some have an object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def answer_schema(line: bytes) -> pa.Schema:
    """The schema of output files.

    :param line: one of them, since it tells chats and prompts from texts to embed.
    """
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    body = _body_of(line)
    has_vectors = "data" in body
    if has_vectors:
        packed = isinstance(body["data"][0]["embedding"], str)
        vector = [("object", text), ("index", whole), ("embedding", text if packed else pa.list_(number))]
        answers = ("data", pa.list_(pa.struct(vector)))
    else:
        answers = ("choices", pa.list_(_choice()))
    usage = [("prompt_tokens", whole), ("total_tokens", whole)]
    if not has_vectors:
        usage += [
            ("completion_tokens", whole),
            ("prompt_tokens_details", pa.struct([("cached_tokens", whole)])),
            ("completion_tokens_details", pa.struct([("reasoning_tokens", whole)])),
        ]
    named = [] if has_vectors else [("id", text), ("created", whole)]
    fields = [*named, ("object", text), ("model", text), answers, ("usage", pa.struct(usage))]
    response = [("status_code", whole), ("request_id", text), ("body", pa.struct(fields))]
    columns = [("id", text), ("custom_id", text), ("response", pa.struct(response)), ("error", text)]
    return pa.schema(columns)


def _choice() -> pa.StructType:
    """A choice of either endpoint. The older one's `top_logprobs` have a field a token, and are left out."""
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    message = pa.struct([
        ("role", text),
        ("content", text),
        ("refusal", text),
        ("reasoning_content", text),
        ("tool_calls", pa.list_(call)),
    ])
    likely = [("token", text), ("logprob", number), ("bytes", pa.list_(whole))]
    token = pa.struct([*likely, ("top_logprobs", pa.list_(pa.struct(likely)))])
    logprobs = pa.struct([
        ("content", pa.list_(token)),
        ("tokens", pa.list_(text)),
        ("token_logprobs", pa.list_(number)),
        ("text_offset", pa.list_(whole)),
    ])
    return pa.struct([
        ("index", whole),
        ("text", text),
        ("message", message),
        ("logprobs", logprobs),
        ("finish_reason", text),
    ])


def _body_of(line: bytes) -> dict[str, Any]:
    return dict(json.loads(line)["response"]["body"])
