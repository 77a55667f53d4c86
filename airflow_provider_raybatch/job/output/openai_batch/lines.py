# SPDX-License-Identifier: Apache-2.0
"""Lines of OpenAI's output and error files: each line of the input gets one, in one of both.

Names are made of the run and of the line's place in the input, so that a resumed run writes what an
uninterrupted one would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    CHAT,
    COMPLETIONS,
    CUSTOM_ID,
    EMBEDDINGS,
    LINE_COLUMNS,
)
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import hex_digest
from airflow_provider_raybatch.job.output.openai_batch.bodies import chat_completion, completion, embeddings
from airflow_provider_raybatch.job.output.openai_batch.unanswered import custom_id_in, unanswered_error
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.openai_batch.parameters import MISSING, WRONG_VALUE, LineError

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


SCHEMA = pa.schema([
    ("id", pa.string()),
    (CUSTOM_ID, pa.string()),
    (
        "response",
        pa.struct([
            ("status_code", pa.int64()),
            ("request_id", pa.string()),
            ("body", pa.struct([("object", pa.string()), ("model", pa.string())])),
        ]),
    ),
    ("error", pa.string()),
])
"""Of an output file, as far as all bodies have it."""

_AT_ONCE = 256
"""Rows that are Python values at once; a line may have megabytes."""


@dataclass(frozen=True)
class AnswerLines:
    """Writes the lines of one job. Picklable.

    :param run: of the task, see :attr:`Submission.run_id`.
    :param created: epoch seconds that all answers have.
    """

    spec: BatchInferenceSpec
    run: str
    created: int

    def answers(self, rows: pa.Table) -> bytes:
        """Lines of the output file.

        :param rows: good rows of parts.
        """
        found = rows.select(["ordinal", "input", "output"]).to_batches(_AT_ONCE)
        return b"".join(self._answer(row) for batch in found for row in batch.to_pylist())

    def _answer(self, row: Mapping[str, Any]) -> bytes:
        body = self._body(row["ordinal"], row["input"], row["output"])
        return self._line(row["ordinal"], row["input"][CUSTOM_ID], 200, body)

    def errors(self, rows: pa.Table) -> bytes:
        """Lines of the error file.

        :param rows: failed rows of parts.
        """
        wanted = [name for name in ("ordinal", "failure", "input") if name in rows.schema.names]
        found = rows.select(wanted).to_batches(_AT_ONCE)
        each = (row for batch in found for row in batch.to_pylist())
        return b"".join(self._error(row["ordinal"], row["failure"], row.get("input") or {}) for row in each)

    def _body(self, ordinal: int, line: Mapping[str, Any], output: Mapping[str, Any]) -> Any:
        body, name = json.loads(line["body"]), self._name(ordinal)
        if line["url"] == EMBEDDINGS:
            return embeddings(body, output)
        make = completion if line["url"] == COMPLETIONS else chat_completion
        return make(name, self.created, body, output)

    def _error(self, ordinal: int, failure: Mapping[str, str], line: Mapping[str, Any]) -> bytes:
        if (unanswered := unanswered_error(failure["step"])) is not None:
            return self._written(ordinal, line.get(CUSTOM_ID), None, unanswered)
        status, error = error_of(failure, line, self.spec)
        unread = custom_id_in(failure["request"]) if failure["step"] == "read" else None
        return self._line(ordinal, line.get(CUSTOM_ID) or unread, status, {"error": error})

    def _name(self, ordinal: int) -> str:
        return hex_digest(f"{self.run}-{ordinal}")[:24]

    def _line(self, ordinal: int, custom_id: str | None, status: int, body: Any) -> bytes:
        name = self._name(ordinal)
        response = {"status_code": status, "request_id": f"req_{name}", "body": body}
        return self._written(ordinal, custom_id, response, None)

    def _written(self, ordinal: int, custom_id: str | None, response: Any, error: Any) -> bytes:
        name = f"batch_req_{self._name(ordinal)}"
        line = {"id": name, CUSTOM_ID: custom_id, "response": response, "error": error}
        return (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
