# SPDX-License-Identifier: Apache-2.0
"""Which of OpenAI's errors a failed line has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.base import overlong, too_long
from airflow_provider_raybatch.job.output.openai_batch.lines import error_of
from airflow_provider_raybatch.job.row import RowFailure
from tests.support.openai_lines import COMPLETIONS, EMBEDDINGS, chat, line
from tests.support.specs import spec as spec_of

SPEC = spec_of(format="openai_batch", destination_format="openai_batch", prompt=None)
GOOD = {**line("a", chat()), "body": json.dumps(chat())}


@pytest.mark.parametrize(
    ("failure", "row", "status", "param", "code"),
    [
        (overlong(9, 5), GOOD, 400, "messages", "context_length_exceeded"),
        (overlong(9, 5), {**GOOD, "url": COMPLETIONS}, 400, "prompt", "context_length_exceeded"),
        (too_long(9, 5), {**GOOD, "url": EMBEDDINGS}, 400, "input", "context_length_exceeded"),
        (RowFailure("tokenize", "it has the special token '<s>'"), GOOD, 400, "messages", "invalid_value"),
        (RowFailure("template", "roles must alternate"), GOOD, 400, "messages", "invalid_value"),
        (RowFailure("template", "body: bad"), {**GOOD, "body": "{"}, 400, None, "invalid_value"),
        (RowFailure("read", "not JSON"), {}, 400, None, "invalid_json_line"),
        (RowFailure("engine", "VLLMValidationError: min_tokens"), GOOD, 400, None, "invalid_value"),
        (RowFailure("engine", "ValueError: The grammar is bad"), GOOD, 400, None, "invalid_value"),
        (RowFailure("engine", "the engine's process dies of this row"), GOOD, 500, None, "server_error"),
        (RowFailure("engine", "RuntimeError: it broke"), GOOD, 500, None, "server_error"),
        (RowFailure("parse", "the response is not JSON"), GOOD, 500, None, "invalid_response"),
        (RowFailure("length", "the response was cut off"), GOOD, 500, None, "invalid_response"),
    ],
)
def test_step_and_line_decide_the_error(
    failure: RowFailure, row: dict[str, Any], status: int, param: str | None, code: str
) -> None:
    found, error = error_of({"step": failure.step, "reason": failure.reason, "request": ""}, row, SPEC)
    kind = "invalid_request_error" if status == 400 else "server_error"
    assert (found, error) == (
        status,
        {"message": failure.reason, "type": kind, "param": param, "code": code},
    )
