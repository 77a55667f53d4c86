# SPDX-License-Identifier: Apache-2.0
"""Which of OpenAI's errors a failed line has: status, field and code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    LINE_COLUMNS,
)
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.openai_batch.refusal import MISSING, WRONG_VALUE, LineError

_ASKED = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
_LENGTHS = ("leaves no room", "the model takes")
"""In the reasons of texts that are too long."""
_REFUSED_BY_ENGINE = re.compile(r"(VLLMValidation|Value|Spec)Error: |sampling: ")
"""Begins the reason of parameters that only the engine can judge, such as `min_tokens` above `max_tokens`."""


def error_of(
    failure: Mapping[str, str], line: Mapping[str, Any], spec: BatchInferenceSpec
) -> tuple[int, dict[str, Any]]:
    """The status of a failed line, and the error in its body.

    :param failure: of the part.
    :param line: its columns; empty if it could not be read.
    """
    step, reason = failure["step"], failure["reason"]
    refused = _refusal(step, reason, line, spec)
    if refused is not None:
        param, code = refused
        return 400, {"message": reason, "type": "invalid_request_error", "param": param, "code": code}
    code = "invalid_response" if step in ("parse", "length") else "server_error"
    return 500, {"message": reason, "type": "server_error", "param": None, "code": code}


def _refusal(
    step: str, reason: str, line: Mapping[str, Any], spec: BatchInferenceSpec
) -> tuple[str | None, str] | None:
    """Field and code where the line is at fault; ``None`` where the model or its engine is."""
    asked = _ASKED.get(line.get("url") or "")
    if step == "read":
        name = reason.partition(":")[0]
        return (name, MISSING) if name in LINE_COLUMNS else (None, "invalid_json_line")
    if step == "media":
        return asked, "invalid_image"
    if step == "template":
        return _of_check(line, spec) or (asked, WRONG_VALUE)  # the model's chat template refuses it
    if step == "tokenize":
        is_long = any(one in reason for one in _LENGTHS)
        return asked, "context_length_exceeded" if is_long else WRONG_VALUE
    if step == "engine" and _REFUSED_BY_ENGINE.match(reason):
        return None, WRONG_VALUE
    return None


def _of_check(line: Mapping[str, Any], spec: BatchInferenceSpec) -> tuple[str | None, str] | None:
    """What the check of the line says again, since the part has its sentence alone."""
    try:
        request_of(line, spec)
    except LineError as error:
        return error.param, error.code
    except Exception:  # as the row did, whose failure says why
        return None, WRONG_VALUE
    return None
