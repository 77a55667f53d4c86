# SPDX-License-Identifier: Apache-2.0
"""Chat template and tokeniser, on batches, with the failures of single rows kept apart."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.arguments.model import ModelArguments
from airflow_provider_raybatch.job.engine.base import most_prompt_tokens, overlong
from airflow_provider_raybatch.job.engine.token_ids import check_token_ids, within
from airflow_provider_raybatch.job.request.render import text_of
from airflow_provider_raybatch.job.request.row_text import shortened
from airflow_provider_raybatch.job.request.special_tokens import SpecialTokens, special_tokens_of
from airflow_provider_raybatch.job.row import Request, RowFailure

RenderChat = Callable[[list[dict[str, Any]]], "str | list[int]"]


_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")


def prints_the_date(model: ModelArguments, tokenizer: Any) -> bool:
    """Whether the chat template may ask for the date; some models' templates print it."""
    return "strftime_now" in str(model.chat_template or getattr(tokenizer, "chat_template", None) or "")


def template_of(model: ModelArguments, tokenizer: Any) -> str | None:
    """The chat template that replaces the tokenizer's, if one has to.

    One that prints the date prints that of the run, in UTC, however long the job takes. It is written into
    the template, since transformers hands a template no functions.
    """
    text = model.chat_template or getattr(tokenizer, "chat_template", None)
    if model.template_time is None or not isinstance(text, str) or "strftime_now" not in text:
        return model.chat_template
    now = datetime.datetime.fromtimestamp(model.template_time, datetime.timezone.utc)
    return _TODAY.sub(lambda found: json.dumps(now.strftime(found[2])), text)


def hf_renderer(tokenizer: Any, template: str | None, template_kwargs: Mapping[str, Any]) -> RenderChat:
    """A chat as the tokeniser's own template makes it, where there is no vLLM to render it.

    :param tokenizer: a Hugging Face tokeniser.
    :param template: a Jinja chat template that replaces the tokeniser's own.
    :param template_kwargs: further variables for the template.
    """

    def render(messages: list[dict[str, Any]]) -> str:
        plain = [
            {**message, "content": text_of(message["content"])} if "content" in message else message
            for message in messages
        ]
        return str(
            tokenizer.apply_chat_template(
                plain,
                chat_template=template,
                tokenize=False,
                **{"add_generation_prompt": True, **template_kwargs},
            )
        )

    return render


class ChatEncoder:
    """Turns requests into token ids.

    A chat is rendered to text first and tokenised without special tokens, since a chat template writes its
    own BOS: a tokeniser that adds one too would double it. A raw prompt gets the tokeniser's special tokens,
    as in vLLM.

    :param tokenizer: a Hugging Face tokeniser.
    :param render: renders a chat to text, or to token ids.
    :param template: the chat template, in so far as it is text.
    :param special_tokens: what happens to special tokens in the text of rows, and `on_overlong` to prompts
        that leave no room for a response; see
        :class:`~airflow_provider_raybatch.contract.arguments.prompt.PromptArguments`.
    :param vocabulary: tokens of the model, if known: a prompt with another fails.
    """

    def __init__(
        self,
        tokenizer: Any,
        render: RenderChat,
        template: str = "",
        special_tokens: str = "keep",
        on_overlong: str = "error",
        vocabulary: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._render = render
        self._vocabulary = vocabulary
        self.special_tokens = special_tokens_of(tokenizer, template)
        self._special = SpecialTokens(self.special_tokens)
        self._in_text = special_tokens
        self._truncates = on_overlong == "truncate"

    def has_special_tokens(self, request: Request) -> bool:
        """Whether the row's text has special tokens; a raw prompt may be meant to."""
        return request.messages is not None and bool(self._special.found(request))

    def fitted(
        self, request: Request, ids: list[int], context: int, max_tokens: Any
    ) -> list[int] | RowFailure:
        """Token ids that leave room for a response: the row's own, those of a cut prompt, or a failure.

        :param ids: of the whole request.
        """
        if len(ids) < context:
            return ids
        if not self._truncates:
            return overlong(len(ids), context)

        def tokens_of(cut: Request) -> int:
            (made,) = self.encode([cut])
            return 0 if isinstance(made, RowFailure) else len(made)

        cut = shortened(request, tokens_of, len(ids), most_prompt_tokens(context, max_tokens))
        return overlong(len(ids), context) if cut is None else self.encode([cut])[0]

    def encode(self, requests: Sequence[Request]) -> list[list[int] | RowFailure]:
        """Token ids of each request, or why it has none."""
        if self._in_text == "escape":
            requests = [self._special.escaped(request) for request in requests]
        out: list[list[int] | RowFailure] = [RowFailure("tokenize", "not tokenised")] * len(requests)
        texts: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
        for position, request in enumerate(requests):
            if self._in_text == "error" and (failure := self._special.failure(request)) is not None:
                out[position] = failure
                continue
            if request.messages is None:
                texts[True].append((position, request.prompt or ""))
                continue
            chat = self._rendered(request.messages)
            if isinstance(chat, str):
                texts[False].append((position, chat))
            else:
                out[position] = chat
        for special, placed in texts.items():
            made = self._tokenize([text for _, text in placed], special)
            for (position, _), ids in zip(placed, made, strict=True):
                out[position] = ids
        size = self._vocabulary
        if size is None:
            return out
        return [ids if isinstance(ids, RowFailure) else within(ids, self._tokenizer, size) for ids in out]

    def check_sampling(self, params: Any) -> None:
        """Check a request's parameters, which may have token ids.

        :param params: vLLM's.
        :raises PreflightError: the model lacks one.
        """
        if self._vocabulary is not None:
            check_token_ids(params, self._tokenizer, self._vocabulary)

    def _rendered(self, messages: list[dict[str, Any]]) -> str | list[int] | RowFailure:
        try:
            return self._render(messages)
        except Exception as error:  # a template may raise anything, raise_exception() included
            return RowFailure.of("template", error)

    def _tokenize(self, texts: list[str], special: bool) -> list[list[int] | RowFailure]:
        if not texts:
            return []
        try:
            return list(self._tokenizer(texts, add_special_tokens=special)["input_ids"])
        except Exception:  # one bad text fails the whole batch: find out which
            return [self._tokenize_one(text, special) for text in texts]

    def _tokenize_one(self, text: str, special: bool) -> list[int] | RowFailure:
        try:
            return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])
        except Exception as error:
            return RowFailure.of("tokenize", error)
