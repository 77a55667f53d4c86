# SPDX-License-Identifier: Apache-2.0
"""Refuses tools that can't be called: a broken schema, an unknown parser, a template that prints no tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_parsers
from airflow_provider_raybatch.job.engine.request_values import check_end
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.request.json_schema import check_schema
from airflow_provider_raybatch.job.row import Request


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


def check_calls(
    spec: BatchInferenceSpec, tokenizer: Any, render: Callable[..., str], requests: Sequence[Request]
) -> None:
    """Check that the model is shown its tools, and that its calls can be read, in a process that has vLLM.

    :param render: makes a text of a chat, with further variables for its template; empty if it fails.
    :raises PreflightError: one sentence about the first problem found.
    """
    for step, one in spec.with_tools.items():
        chats = (request.messages for request in requests if request.step == step)
        chat = next((messages for messages in chats if messages is not None), None)
        if chat is not None and (plain := render(chat, tools=None)):
            text = render(chat, tools=one.tools)
            if text in ("", plain):
                fault = "prints no tools, so the model never sees them" if text else "fails at the tools"
                raise PreflightError(
                    f"chat_template: that of {spec.model!r} {fault}; take a model that was trained for "
                    "tools, or give a template that prints them."
                )
        if one.calls_tools:
            _check_caller(one, tokenizer, _where(step))


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
