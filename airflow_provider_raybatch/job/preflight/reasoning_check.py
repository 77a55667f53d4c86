# SPDX-License-Identifier: Apache-2.0
"""Whether the reasoning parser fits the model, as far as its vocabulary and its chat template tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.engine.response_parsers import BEGINS, ENDS, left_tags
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.tool_check import no_parser
from airflow_provider_raybatch.job.row import Request

_HARMONY = "analysis, commentary, final"
"""In the system message of models that answer in channels."""
ChatText = Callable[..., str]
"""The text of a chat, with more variables of its template; empty where it has none."""


def check_reasoning(
    spec: BatchInferenceSpec, tokenizer: Any, chat_text: ChatText, requests: Sequence[Request]
) -> str:
    """Check how reasoning is told from answers.

    :returns: a warning, as a sentence; empty without one.
    :raises PreflightError: vLLM has no such parser, the tokenizer lacks its tags, or it splits no texts; or
        JSON is asked of a model that reasons first, without a parser or a grammar.
    """
    chat = next((request.messages for request in requests if request.messages is not None), None)
    if not spec.reasoning_parser and chat is not None:
        _refuse_reasoning_before_json(spec, chat_text, chat)
    return _check_parser(spec, tokenizer) if spec.splits_reasoning else ""


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
