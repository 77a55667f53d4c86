# SPDX-License-Identifier: Apache-2.0
"""Chat template and tokeniser, on batches, with the failures of single rows kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.job.request import Request, RowFailure


class ChatEncoder:
    """Turns requests into token ids.

    A chat is rendered to text first and tokenised without special tokens, since a chat template writes its
    own BOS: a tokeniser that adds one too would double it. A raw prompt gets the tokeniser's special tokens,
    as in vLLM.

    :param tokenizer: a Hugging Face tokeniser.
    :param template: a Jinja chat template that replaces the tokeniser's own.
    :param template_kwargs: further variables for the template.
    """

    def __init__(self, tokenizer: Any, template: str | None, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._kwargs = dict(template_kwargs)

    def encode(self, requests: Sequence[Request]) -> list[list[int] | RowFailure]:
        """Token ids of each request, or why it has none."""
        chats: list[str | RowFailure | None] = [
            None if request.messages is None else self._render(request.messages) for request in requests
        ]
        out: list[list[int] | RowFailure] = [RowFailure("tokenize", "not tokenised")] * len(requests)
        for position, chat in enumerate(chats):
            if isinstance(chat, RowFailure):
                out[position] = chat
        from_chat = [(position, chat) for position, chat in enumerate(chats) if isinstance(chat, str)]
        raw = [
            (position, requests[position].prompt or "") for position, chat in enumerate(chats) if chat is None
        ]
        for texts, special in ((from_chat, False), (raw, True)):
            for (position, _), ids in zip(
                texts, self._tokenize([text for _, text in texts], special), strict=True
            ):
                out[position] = ids
        return out

    def _render(self, messages: list[dict[str, Any]]) -> str | RowFailure:
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=True,
                **self._kwargs,
            )
        except Exception as error:  # a template may raise anything, raise_exception() included
            return RowFailure.of("template", error)
        return str(text)

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
