# SPDX-License-Identifier: Apache-2.0
"""A model's special tokens in the text of rows, which the tokenizer would take for turns of the chat."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from airflow_provider_raybatch.contract.row_template import FilledTemplate
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.row_text import texts_of, with_texts
from airflow_provider_raybatch.job.row import Request, RowFailure


def special_tokens_of(tokenizer: Any, chat_template: str) -> list[str]:
    """The texts that the tokenizer reads as one token with a meaning of its own.

    These are its special tokens, and others that the chat template writes, such as ``<think>``. A tokenizer
    of Mistral's own takes no text for them.
    """
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    texts = {str(token): bool(getattr(token, "special", True)) for token in added.values()}
    return [text for text, special in texts.items() if text.strip() and (special or text in chat_template)]


class SpecialTokens:
    """Finds and escapes special tokens; those in the text of a row template are not the row's.

    :param tokens: see :func:`special_tokens_of`.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(tokens)
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for token in self._tokens:
            lengths[token[0]].add(len(token))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        heads = sorted({re.escape(token[:2]) for token in self._tokens})
        self._heads = re.compile("|".join(heads) or "(?!)")

    def found(self, request: Request) -> str:
        """The first one in the row's text; empty if there is none."""
        for text in texts_of(request):
            for start, length in self._places(text):
                return text[start : start + length]
        return ""

    def escaped(self, request: Request) -> Request:
        """The request with a space after the first character of each, so that none is a token."""
        return with_texts(request, self._escaped) if self.found(request) else request

    def failure(self, request: Request) -> RowFailure | None:
        """The failure of a row that may have none."""
        token = self.found(request)
        if not token:
            return None
        return RowFailure(
            "tokenize",
            f"the row's text has the special token {token!r}, which would act as part of the chat; remove "
            "it, or set special_tokens_in_text to 'escape'",
        )

    def _escaped(self, text: str) -> str:
        out, last = [], 0
        for start, length in self._places(text):
            out.append(text[last : start + (length > 1)])
            last = start + 1
        return " ".join([*out, text[last:]])

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and length of each one, also where they overlap."""
        owned: list[tuple[int, int]] | None = None
        head = self._heads.search(text)
        while head:
            start = head.start()
            sizes = self._lengths[text[start]]
            length = next((size for size in sizes if text[start : start + size] in self._tokens), 0)
            if length:
                owned = _of_row(text) if owned is None else owned
                if any(begin < start + length and start < end for begin, end in owned):
                    yield start, length
            head = self._heads.search(text, start + 1)


def _of_row(text: str) -> list[tuple[int, int]]:
    """Spans of the row's values, over whose borders a token may lie."""
    if not isinstance(text, FilledTemplate):
        return [(0, len(text))]
    spans, place = [], 0
    for number, piece in enumerate(text.pieces):
        if number % 2 and piece:
            spans.append((place, place + len(piece)))
        place += len(piece)
    return spans


def effect(spec: BatchInferenceSpec) -> str:
    """What special tokens do in the job, as a clause."""
    if spec.special_tokens_in_text == "escape":
        return "which are escaped"
    return "which act as turns of the chat; if that is not meant, set special_tokens_in_text to 'escape'"
