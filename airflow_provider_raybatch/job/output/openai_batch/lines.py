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
)
from airflow_provider_raybatch.contract.digest import hex_digest
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.output.openai_batch.bodies import (
    chat_completion,
    completion,
    embeddings,
)
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.openai_batch.refusal import LineError

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

_CUSTOM_ID = re.compile(r'"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")')
_BAD_LINE, _TOO_LONG = "invalid_json_line", "context_length_exceeded"
_AT_ONCE = 256
"""Rows that are Python values at once; a line may have megabytes."""
_WRONG = "invalid_value"
_LENGTHS = ("leaves no room", "the model takes")
"""In the reasons of texts that are too long."""
_ASKED = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}
_REFUSED_STEPS = frozenset({"read", "template", "tokenize"})
"""Where the line is at fault, and not the model or its engine."""


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
        lines: list[Any] = [None] * rows.num_rows
        if "input" in rows.schema.names:
            lines = rows["input"].to_pylist()
        found = zip(rows["ordinal"].to_pylist(), rows["failure"].to_pylist(), lines, strict=True)
        return b"".join(self._error(ordinal, failure, line or {}) for ordinal, failure, line in found)

    def _body(self, ordinal: int, line: Mapping[str, Any], output: Mapping[str, Any]) -> Any:
        body, name = json.loads(line["body"]), self._name(ordinal)
        if line["url"] == EMBEDDINGS:
            return embeddings(body, output)
        make = completion if line["url"] == COMPLETIONS else chat_completion
        return make(name, self.created, body, output)

    def _error(self, ordinal: int, failure: Mapping[str, str], line: Mapping[str, Any]) -> bytes:
        step, reason = failure["step"], failure["reason"]
        param, code = None, "invalid_response" if step in ("parse", "length") else "server_error"
        status, kind = (400, "invalid_request_error") if step in _REFUSED_STEPS else (500, "server_error")
        if step == "read":
            code = _BAD_LINE
        elif step == "template":
            param, code = self._refusal(line)
        elif step == "tokenize":
            param = _ASKED.get(line.get("url", ""))
            code = _TOO_LONG if any(one in reason for one in _LENGTHS) else _WRONG
        named = line.get(CUSTOM_ID) or (_named_in(failure["request"]) if step == "read" else None)
        error = {"message": reason, "type": kind, "param": param, "code": code}
        return self._line(ordinal, named, status, {"error": error})

    def _refusal(self, line: Mapping[str, Any]) -> tuple[str | None, str]:
        """Field and code of a line that makes no request: the part has the sentence alone."""
        try:
            request_of(line, self.spec)
        except LineError as error:
            return error.param, error.code
        except Exception:  # as the row did, and its failure says why
            return None, _WRONG
        return _ASKED.get(line["url"]), _WRONG  # the model's chat template refuses it

    def _name(self, ordinal: int) -> str:
        return hex_digest(f"{self.run}-{ordinal}")[:24]

    def _line(self, ordinal: int, custom_id: str | None, status: int, body: Any) -> bytes:
        name = self._name(ordinal)
        response = {"status_code": status, "request_id": f"req_{name}", "body": body}
        line = {"id": f"batch_req_{name}", CUSTOM_ID: custom_id, "response": response, "error": None}
        return (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _named_in(text: str) -> str | None:
    """The id in a line that is not JSON, as far as it is there."""
    found = _CUSTOM_ID.search(text)
    try:
        name = json.loads(found[1]) if found else None
    except ValueError:
        return None
    return name if name and "\ufffd" not in name else None  # which stands for bytes that are not text
