# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM's parsers, of tools and of reasoning, that vLLM does not promise to keep."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.job.engine.vllm_compat import source_of

_BLANKS = "max_whitespace_cnt"
"""Of JSON in xgrammar's structural tags; null for no limit."""
_REGISTRY = "_TOOL_PARSERS_TO_REGISTER"


def tool_parsers() -> list[str]:
    """Names of vLLM's tool parsers, read without importing vLLM; empty where they can't be found."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.parse(source_of("tool_parsers/__init__.py")).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            if any(isinstance(one, ast.Name) and one.id == _REGISTRY for one in targets):
                return sorted(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return []


def tool_request(tools: Sequence[Mapping[str, Any]], choice: Any) -> Any:
    """What vLLM's parsers read of a request."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        messages=[{"role": "user", "content": "x"}],
        model="model",
        tools=copy.deepcopy(list(tools)),
        tool_choice=choice,
    )


def tool_parser(name: str) -> Any:
    """The class of a parser.

    :raises Exception: vLLM has no such parser.
    """
    from vllm.parser import ParserManager

    # They log a traceback for each text in which they can't read a call.
    logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
    return ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)


def constraint_of(request: Any) -> dict[str, Any]:
    """Sampling parameters that a parser has set in a request.

    :param request: as `adjust_request` of a parser has left it.
    """
    sampling: dict[str, Any] = {} if request.skip_special_tokens else {"skip_special_tokens": False}
    structured = request.structured_outputs
    if structured is not None and structured.structural_tag is not None:
        tag = json.dumps(_compact(json.loads(structured.structural_tag)), ensure_ascii=False)
        sampling["structured_outputs"] = {"structural_tag": tag}
    elif structured is not None and structured.json is not None:
        sampling["structured_outputs"] = {"json": structured.json}
    return sampling


def _compact(part: Any) -> Any:
    """A part of a structural tag, with at most one blank in a row in JSON.

    A weak model writes white space between values until `max_tokens`, and `disable_any_whitespace` does not
    reach JSON in tags. Older versions of xgrammar have no such limit.
    """
    if isinstance(part, list):
        return [_compact(one) for one in part]
    if not isinstance(part, dict):
        return part
    inner = {name: value if name == "json_schema" else _compact(value) for name, value in part.items()}
    return {**inner, _BLANKS: 1} if inner.get(_BLANKS, 0) is None else inner


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
