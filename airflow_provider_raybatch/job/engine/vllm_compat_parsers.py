# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM's grammars, and of its parsers of tools and reasoning, that vLLM does not promise to keep."""

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


def compile_structured(params: Any, backend: str) -> None:
    """Compile a constraint; `auto` tries xgrammar, then guidance.

    :param backend: of the engine's `structured_outputs_config`; backends other than these are not checked.
    :raises Exception: of the grammar libraries; the constraint does not compile.
    """
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    if backend == "xgrammar":
        validate_xgrammar_grammar(params)
    elif backend == "guidance":
        validate_guidance_grammar(params, tokenizer=None)
    elif backend == "auto":
        try:
            validate_xgrammar_grammar(params)
        except Exception:  # the libraries raise classes of their own
            validate_guidance_grammar(params, tokenizer=None)


def takes_structured(params: Any, backend: str, tokenizer: Any) -> bool:
    """Whether vLLM could choose this backend for a constraint.

    :param params: vLLM writes into them.
    :param backend: xgrammar or guidance.
    """
    from vllm.v1.structured_output.backend_guidance import has_guidance_unsupported_json_features

    schema = params.structured_outputs.json
    if backend == "guidance":
        if not getattr(tokenizer, "is_tekken", True):  # guidance knows only Mistral's newer tokenizers
            return False
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if schema and has_guidance_unsupported_json_features(schema):
            return False
    try:
        compile_structured(params, backend)
    except Exception:
        return False
    return True


def token_texts(tokenizer: Any) -> list[bytes]:
    """The bytes of each token of a Hugging Face tokenizer, as the grammars of structured output see them.

    A special token has none. The list is empty for a tokenizer that the grammars don't know.
    """
    try:
        import xgrammar

        found = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        texts = list(found.decoded_vocab)
    except Exception:  # a library of vLLM's, and any kind of tokenizer
        return []
    special = {*found.special_token_ids, *found.stop_token_ids, *tokenizer.all_special_ids}
    return [b"" if number in special else text for number, text in enumerate(texts)]


def ends_grammars(tokenizer: Any) -> bool:
    """Whether a tokenizer has a token that ends a response under a grammar."""
    if getattr(tokenizer, "eos_token_id", None) is not None:
        return True
    import xgrammar  # which finds the common ones by their texts

    return bool(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer)).stop_token_ids)


def sampling_objects() -> dict[str, Any]:
    """The dataclasses of those parameters of ``SamplingParams`` that are objects, by name."""
    from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams

    return {
        "structured_outputs": StructuredOutputsParams,
        "repetition_detection": RepetitionDetectionParams,
    }
