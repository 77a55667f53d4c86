# SPDX-License-Identifier: Apache-2.0
"""What a model thought before it answered, where the job names a reasoning parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns

_SHOWN = 200


class Reasoning(CompletionColumns):
    """The columns ``reasoning`` and ``reasoning_tokens``; the response is what follows.

    A response that was cut off while the model reasoned is empty, and kept like other cut texts. Without an
    answer for another reason, and where the answer must be JSON or otherwise structured, its row fails.
    """

    TYPES: ClassVar[dict[str, pa.DataType]] = {"reasoning": pa.string(), "reasoning_tokens": pa.int64()}

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        structured = sampling.get("structured_outputs") or {}
        for completion in response.completions:
            if (problem := completion.extra.get("reasoning_problem")) is not None:
                return self._unsplit(problem, completion.text)
            has_answer = completion.text.strip() or completion.extra.get(TOOL_CALLS_COLUMN)
            if completion.extra.get("reasoning") is not None and not has_answer:
                if completion.finish_reason != "length":
                    return self._unanswered(completion)
                if structured or self.spec.response_format != "text":
                    return _cut(completion)
            choices = structured.get("choice")
            if choices and completion.text not in choices:  # the grammar begins where the parser says
                cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
                return f"the response is not one of the choices{cut}: {completion.text[:_SHOWN]!r}"
        return None

    def _unsplit(self, problem: str, text: str) -> str:
        name = self.spec.reasoning_parser
        return (
            f"reasoning_parser {name!r} {problem}; name the parser of the model's family: {text[:_SHOWN]!r}"
        )

    def _unanswered(self, completion: Completion) -> str:
        return (
            "the response has reasoning and no answer after it: the model ended without closing its "
            f"reasoning as reasoning_parser {self.spec.reasoning_parser!r} expects, or said no more; if it "
            "does not reason here, remove reasoning_parser, or set chat_template_kwargs={'enable_thinking': "
            f"False}}: {completion.extra['reasoning'][-_SHOWN:]!r}"
        )


def _cut(completion: Completion) -> str:
    tokens = count_of(completion.output_tokens, "token")
    return (
        f"the response was cut off while the model reasoned, after {tokens}, so it "
        "has no answer; raise sampling.max_tokens, or end the reasoning earlier with thinking_token_budget"
    )
