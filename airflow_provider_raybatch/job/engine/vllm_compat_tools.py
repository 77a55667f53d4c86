# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM for tools that vLLM does not promise to keep."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.job.engine.vllm_compat import source_of

_BLANKS = "max_whitespace_cnt"
"""Of JSON in xgrammar's structural tags; null for no limit."""
_REGISTRY = "_TOOL_PARSERS_TO_REGISTER"
_STARTS = (
    "tool_call_start_token",
    "tool_calls_start_token",
    "bot_token",
    "tool_call_start",
    "TOOL_CALLS_BEGIN",
)
"""Attributes of vLLM's parsers that hold the text before a call."""


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


def start_texts(parser: Any) -> list[str]:
    """Texts with which a call begins, where the parser tells."""
    inner = parser.tool_parser
    found = (getattr(inner, name, None) for name in _STARTS)
    return [text for text in found if isinstance(text, str) and text]


class ParserErrors(logging.Handler):
    """Notes what vLLM's parsers log as errors, each in its own thread, in place of printing tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._of_thread = threading.local()
        logger = logging.getLogger("vllm.tool_parsers")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Note an error."""
        error = record.exc_info[1] if record.exc_info else None
        self._of_thread.found = f"{type(error).__name__}: {error}" if error else record.getMessage()

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[str]]:
        """A list that has the last error, once the block has ended."""
        self._of_thread.found, found = None, list[str]()
        yield found
        if self._of_thread.found is not None:
            found.append(self._of_thread.found)


@functools.cache
def parser_errors() -> ParserErrors:
    """The one of this process, whichever jobs it serves."""
    return ParserErrors()
