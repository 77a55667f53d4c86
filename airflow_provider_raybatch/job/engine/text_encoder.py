# SPDX-License-Identifier: Apache-2.0
"""Tokeniser of a pooling model's texts and chats, on batches; a row that fails fails alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import too_long
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, RenderChat, template_of
from airflow_provider_raybatch.job.row import Request, RowFailure


class TextEncoder(ChatEncoder):
    """Turns the text of each request into token ids, with the tokeniser's special tokens around it.

    A chat, which only a classifier gets, is rendered as it is.

    :param lowers: whether the model's sentence-transformers config asks for text in lower case.
    """

    def __init__(
        self,
        tokenizer: Any,
        special_tokens: str,
        on_overlong: str,
        vocabulary: int | None,
        lowers: bool,
        render: RenderChat | None = None,
    ) -> None:
        super().__init__(tokenizer, render or _no_chat, "", special_tokens, on_overlong, vocabulary)
        self._lowers = lowers
        self._opening, self._closing = tokens_around(tokenizer)

    def texts(self, requests: Sequence[Request]) -> list[str | list[int] | RowFailure]:
        """See the base; in lower case where the model's config asks for it."""
        if self._lowers:  # first, as in vLLM, whose special tokens are in lower case then
            requests = [
                one if one.prompt is None else replace(one, prompt=one.prompt.lower()) for one in requests
            ]
        return super().texts(requests)

    def has_special_tokens(self, request: Request) -> bool:
        """Texts have no turns of a chat that a special token could begin."""
        return False

    def fitted(
        self, request: Request, ids: list[int], context: int, max_tokens: Any
    ) -> list[int] | RowFailure:
        """The first of the tokens that the model takes and the closing special ones, or a failure.

        :param context: tokens that the model takes; a text may have as many.
        :param max_tokens: not used, since nothing is generated.
        """
        if len(ids) <= context:
            return ids
        room = context - len(self._closing)
        if not self._truncates or room < 1:
            return too_long(len(ids), context)
        return [*ids[:room], *self._closing]


def tokens_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokeniser puts before and behind each text, as ``[CLS]`` and ``[SEP]``."""
    whole, text = (tokenizer("x", add_special_tokens=special)["input_ids"] for special in (True, False))
    starts = range(len(whole) - len(text), -1, -1)
    start = next((place for place in starts if whole[place : place + len(text)] == text), len(whole))
    return list(whole[:start]), list(whole[start + len(text) :])


def text_encoder(
    spec: BatchInferenceSpec,
    tokenizer: Any,
    config: Any,
    renderer: Any = None,
    kind: type[TextEncoder] = TextEncoder,
) -> TextEncoder:
    """The encoder of a job.

    :param config: of the model, as vLLM has it; `renderer` is vLLM's, for chats.
    :param kind: of the encoder.
    """
    render = None
    if renderer is not None:
        variables = {"add_generation_prompt": False, **spec.chat_template_kwargs}
        render = vllm_compat.chat_renderer(renderer, template_of(spec, tokenizer), variables)
    return kind(
        tokenizer,
        spec.special_tokens_in_text,
        spec.on_overlong,
        vllm_compat.vocabulary_size(config),
        lowers_text(config),
        render,
    )


def lowers_text(config: Any) -> bool:
    """Whether vLLM lowers the texts of a model with this config before they are tokenised."""
    encoder: Mapping[str, Any] = getattr(config, "encoder_config", None) or {}
    return bool(encoder.get("do_lower_case", False))


def _no_chat(messages: list[dict[str, Any]]) -> str:
    raise ValueError("a pooling model takes a text, and this request is a chat")
