# SPDX-License-Identifier: Apache-2.0
"""The names of vLLM's reasoning parsers; see :mod:`~airflow_provider_raybatch.job.engine.vllm_compat`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def parser_names() -> list[str]:
    """Of all reasoning parsers."""
    from vllm.reasoning import ReasoningParserManager

    return list(ReasoningParserManager.list_registered())


def reasoning_parser(name: str, tokenizer: Any, variables: Mapping[str, Any], plugin: str = "") -> Any:
    """The parser that splits texts into reasoning and answer.

    :param variables: of the chat template, by which some parsers know whether the model reasons.
    :param plugin: file with a parser of the user's; empty for none.
    :raises Exception: no parser has this name, or the tokenizer lacks its tags.
    """
    from vllm.reasoning import ReasoningParserManager

    if plugin:
        ReasoningParserManager.import_reasoning_parser(plugin)
    made = ReasoningParserManager.get_reasoning_parser(name)
    return made(tokenizer, chat_template_kwargs=dict(variables))


def any_request() -> Any:
    """A request for parsers, which read nothing of it where a response has no tools."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(messages=[{"role": "user", "content": ""}])


def grammar_arguments(llm: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``generate`` for the engine's own parser, which tells where a grammar begins.

    :param variables: of the chat template.
    """
    name = "reasoning_parser_kwargs"
    if name not in inspect.signature(llm.generate).parameters:
        return {}
    return {name: {"chat_template_kwargs": dict(variables)}}
