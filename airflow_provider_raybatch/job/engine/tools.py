# SPDX-License-Identifier: Apache-2.0
"""Tools in chats: what constrains a call, and which calls a text makes, by vLLM's own parsers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.arguments.tools import BROKEN_CALL, TOOL_CALLS_COLUMN
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.row import Completion, Response

_CALLS = "tool_calls"
"""Finish reason of a completion that calls tools, as in OpenAI's API."""
_NOTHING = frozenset({"", "null", '""'})
"""Arguments that vLLM reads as an empty object when the chat goes on."""


class ToolCaller:
    """Finds calls in texts. Its methods may be called in several threads.

    :param tokenizer: the model's.
    :raises PreflightError: vLLM has no such parser, or it does not fit the model or the tools.
    """

    def __init__(self, spec: BatchInferenceSpec, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        name = str(spec.tool_call_parser)
        try:
            self._kind = vllm_compat_parsers.tool_parser(name)
            request = vllm_compat_parsers.tool_request(tools_of(spec), spec.tool_choice)
            self._tools = request.tools
            self._request = self._kind(tokenizer, self._tools).adjust_request(request)
        except Exception as error:  # each parser raises its own
            raise PreflightError(
                f"tool_call_parser: {name!r} does not fit this model and its tools ({short(error)}); take "
                "the parser of the model's family."
            ) from error
        self.sampling: dict[str, Any] = vllm_compat_parsers.constraint_of(self._request)

    def added(self, response: Response) -> Response:
        """The response with the calls of each completion."""
        return replace(response, completions=tuple(map(self.found, response.completions)))

    def found(self, completion: Completion) -> Completion:
        """The completion with its calls, and the text beside them, as vLLM's server has them.

        A text in which the parser finds no call is the answer. One that was cut off calls nothing: its
        arguments may be incomplete, and fit nevertheless.
        """
        if completion.finish_reason == "length":
            return completion
        try:
            parser = self._kind(self._tokenizer, self._tools)
            _, text, calls = parser.parse(completion.text, self._request, enable_auto_tools=True)
        except Exception:  # each parser raises its own
            return _changed(completion, completion.text, {BROKEN_CALL: True}, completion.finish_reason)
        if not calls:
            text = completion.text if text is None else text
            return _changed(completion, text, {}, completion.finish_reason)
        made = [
            {"name": call.name, "arguments": "{}" if call.arguments.strip() in _NOTHING else call.arguments}
            for call in calls
        ]
        return _changed(completion, text or "", {TOOL_CALLS_COLUMN: made}, _CALLS)


def _changed(completion: Completion, text: str, extra: Mapping[str, Any], reason: str) -> Completion:
    return replace(completion, text=text, finish_reason=reason, extra={**completion.extra, **extra})


def tools_of(spec: BatchInferenceSpec) -> list[dict[str, Any]]:
    """The tools as parsers get them.

    Since vLLM 0.32, arguments are held to their schemas only for tools that are strict.
    """
    tools: Sequence[Mapping[str, Any]] = copy.deepcopy(spec.tools or [])
    if not spec.must_call_tools:
        return [dict(tool) for tool in tools]
    return [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in tools]
