# SPDX-License-Identifier: Apache-2.0
"""Whether responses can be parsed: schema of a Pydantic model, calls of tools, reasoning before answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_parsers
from airflow_provider_raybatch.job.engine.request_values import check_end
from airflow_provider_raybatch.job.engine.response_parsers import BEGINS, ENDS, left_tags
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.check import Check
from airflow_provider_raybatch.job.preflight.loaded_model import LoadedModel
from airflow_provider_raybatch.job.request.json_schema import check_schema
from airflow_provider_raybatch.job.request.render import load_function

_FIELD = "response_format"
_HARMONY = "analysis, commentary, final"
"""In the system message of models that answer in channels."""
ChatText = Callable[..., str]
"""The text of a chat, with more variables of its template; empty where it has none."""


@dataclass(frozen=True)
class ReasoningNote:
    """A warning about the reasoning parser, as a sentence; empty without one."""

    text: str = ""


def with_model(spec: BatchInferenceSpec, load: Callable[[str], dict[str, Any]]) -> BatchInferenceSpec:
    """`spec` with the schema of its Pydantic model, if it names one.

    :param load: calls :func:`schema_of_model`.
    :raises PreflightError: the model can't be imported, or its properties can't be columns.
    """
    if spec.response_model is None:
        return spec
    schema = load(spec.response_model)
    try:
        return spec.with_response_schema(schema)
    except ValueError as error:
        raise PreflightError(f"{error} (the schema of {spec.response_model!r}).") from None


def schema_of_model(path: str) -> dict[str, Any]:
    """Import a Pydantic model, and make its JSON schema.

    :raises PreflightError: it can't be imported, is not a Pydantic model, or has no JSON schema.
    """
    model = load_function(path, _FIELD, "class")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PreflightError(
            f"{_FIELD}: {path!r} is not a Pydantic model; derive the class from pydantic.BaseModel "
            "(version 2)."
        )
    try:
        schema: dict[str, Any] = json.loads(json.dumps(model.model_json_schema()))
    except Exception as error:  # Pydantic's own, or what the user's methods raise
        raise PreflightError(
            f"{_FIELD}: {path!r} has no JSON schema ({short(error)}); give its fields types that JSON has."
        ) from error
    return schema


def check_tools(spec: BatchInferenceSpec) -> None:
    """Check the tools of all steps without vLLM, and the parser's name where vLLM is installed.

    :raises PreflightError: one sentence about the first problem found.
    """
    for step, one in spec.with_tools.items():
        for number, tool in enumerate(one.tools or ()):
            if parameters := tool["function"].get("parameters"):
                try:
                    check_schema({"json": parameters})
                except ValueError as error:
                    where = f"{_where(step)}tools: {number}: function: parameters"
                    raise PreflightError(f"{where} {error}.") from None
    name, known = spec.tool_call_parser, vllm_compat_parsers.tool_parsers()
    if name is not None and known and name not in known:
        raise PreflightError(f"tool_call_parser: {no_parser('parser', name, known)}")


def check_calls(model: LoadedModel) -> None:
    """Check that the model is shown its tools, and that its calls can be read, in a process that has vLLM.

    :raises PreflightError: one sentence about the first problem found.
    """
    for step, one in model.spec.with_tools.items():
        chats = (request.messages for request in model.requests if request.step == step)
        chat = next((messages for messages in chats if messages is not None), None)
        if chat is not None and (plain := model.chats.text(chat, tools=None)):
            text = model.chats.text(chat, tools=one.tools)
            if text in ("", plain):
                fault = "prints no tools, so the model never sees them" if text else "fails at the tools"
                raise PreflightError(
                    f"chat_template: that of {model.spec.model!r} {fault}; take a model that was trained for "
                    "tools, or give a template that prints them."
                )
        if one.calls_tools:
            _check_caller(one, model.tokenizer, _where(step))


def _check_caller(spec: BatchInferenceSpec, tokenizer: Any, where: str) -> None:
    from airflow_provider_raybatch.job.engine.response_parsers import ToolCaller
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    constraint = ToolCaller(spec, tokenizer).sampling
    try:
        params = sampling_params({"max_tokens": None, **constraint})
        check_end(params, tokenizer)
        if params.structured_outputs is not None:
            vllm_compat_parsers.compile_structured(params, "auto")
    except PreflightError:
        raise
    except Exception as error:  # the grammar libraries raise classes of their own
        raise PreflightError(
            f"{where}tools: no grammar can be made of their schemas: {short(error)}."
        ) from error


def _where(step: str) -> str:
    """The start of a sentence about the tools of a step."""
    return f"steps: {step}: " if step else ""


def no_parser(kind: str, name: str, known: Sequence[str]) -> str:
    """That vLLM lacks a parser, and what may be meant, up to the end of a sentence."""
    near = nearest(name, known)
    meant = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}."
    return f"vLLM {vllm_compat.installed_version()} has no {kind} {name!r}; {meant}"


def check_reasoning(model: LoadedModel) -> ReasoningNote:
    """Check how reasoning is told from answers.

    :returns: a warning about the parser.
    :raises PreflightError: vLLM has no such parser, the tokenizer lacks its tags, or it splits no texts; or
        JSON is asked of a model that reasons first, without a parser or a grammar.
    """
    spec = model.spec
    if spec.pools:
        return ReasoningNote()
    chat = next((request.messages for request in model.requests if request.messages is not None), None)
    if not spec.reasoning_parser and chat is not None:
        _refuse_reasoning_before_json(spec, model.chats.text, chat)
    return ReasoningNote(_check_parser(spec, model.tokenizer) if spec.splits_reasoning else "")


def _refuse_reasoning_before_json(
    spec: BatchInferenceSpec, chat_text: ChatText, chat: list[dict[str, Any]]
) -> None:
    """A model that reasons first answers no JSON, unless a grammar leaves it no room for that."""
    if spec.response_format != "json_object" or spec.sampling.get("structured_outputs"):
        return
    prompt = chat_text(chat).rstrip()
    switched_off = chat_text(chat, enable_thinking=False, thinking=False).rstrip()
    reasons_by_default = switched_off != prompt and switched_off.endswith(ENDS)
    if prompt.endswith(BEGINS) or reasons_by_default or _HARMONY in prompt:
        raise PreflightError(
            f"response_format: {spec.model!r} reasons before it answers, so no response would be JSON; name "
            "its parser (engine_args={'reasoning_parser': ...}), switch reasoning off where the model can "
            "(chat_template_kwargs={'enable_thinking': False}), or ask for structured_outputs in sampling."
        )


def _check_parser(spec: BatchInferenceSpec, tokenizer: Any) -> str:
    name = spec.reasoning_parser
    try:
        parser = vllm_compat_parsers.reasoning_parser(
            name, tokenizer, spec.chat_template_kwargs, spec.reasoning_plugin
        )
    except Exception as error:  # each parser raises its own
        known = vllm_compat_parsers.parser_names()
        if name not in known:
            raise PreflightError(f"engine_args: {no_parser('reasoning_parser', name, known)}") from None
        raise PreflightError(
            f"engine_args: reasoning_parser {name!r} does not fit {spec.model!r} ({short(error)}); name the "
            "parser of the model's family, or remove it if the model does not reason."
        ) from error
    try:
        left = list(left_tags(parser, vllm_compat_parsers.any_request()))
    except Exception as error:
        raise PreflightError(
            f"engine_args: reasoning_parser {name!r} can't split a text ({short(error)}); name another."
        ) from error
    template = spec.chat_template or getattr(tokenizer, "chat_template", None) or ""
    return _warning(name, spec.model, parser, left, f"{template}{''.join(tokenizer.get_vocab())}")


def _warning(name: str, model: str, parser: Any, left: Sequence[tuple[str, str]], known: str) -> str:
    """What the texts that the model knows say about a parser.

    :param left: tags that it leaves in a text.
    :param known: chat template and vocabulary.
    """
    for begin, end in left:
        if begin in known and end in known:
            return (
                f"engine_args: reasoning_parser {name!r} leaves {begin!r} in a text, and {model!r} has it in "
                "its chat template or vocabulary; rows where the model writes it will be dead letters: name "
                "the parser of the model's family, or set what turns reasoning on in chat_template_kwargs."
            )
    ends_with = getattr(parser, "reasoning_end_str", None)
    if ends_with and ends_with not in known:
        return (
            f"engine_args: reasoning_parser {name!r} waits for {ends_with!r}, and neither the chat template "
            f"of {model!r} nor its vocabulary has it, so the model may not reason in this way; where it does "
            "not, rows will be dead letters: remove reasoning_parser then."
        )
    return ""


REASONING, CALLS = Check(check_reasoning), Check(check_calls)
