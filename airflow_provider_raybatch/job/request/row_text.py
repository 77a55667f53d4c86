# SPDX-License-Identifier: Apache-2.0
"""The texts of a request: special tokens in them, blank ones, and requests with shorter ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.row_template import FilledTemplate
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import IMAGE_PART, RenderError, Request, RowFailure


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


def special_tokens_effect(spec: BatchInferenceSpec) -> str:
    """What special tokens do in the job, as a clause."""
    if spec.special_tokens_in_text == "escape":
        return "which are escaped"
    return "which act as turns of the chat; if that is not meant, set special_tokens_in_text to 'escape'"


_TRIES = 16
_BY_RATIO = 4
"""The first ones guess by the ratio of characters and tokens; the others halve the range."""
_NEAR = 0.01
"""Share of the tokens that may stay unused, to need few tries."""


def texts_of(request: Request) -> Iterator[str]:
    """All texts of a request: a raw prompt, or the strings of its messages but those of an image's place."""
    if request.messages is None:
        yield request.prompt or ""
    else:
        yield from _strings(request.messages)


def not_blank(text: str, what: str) -> str:
    """A text for a pooling model.

    :param what: it is, for the message.
    :raises RenderError: it is blank.
    """
    if not text.strip():
        raise RenderError(f"{what} is empty, and a pooling model needs a text")
    return text


def is_blank(request: Request) -> bool:
    """Whether all that comes from the row is blank; ``False`` for images, and where nothing comes from it."""
    if request.images:
        return False
    values = [value for text in texts_of(request) for value in _values(text)]
    if request.messages is None and not isinstance(request.prompt, FilledTemplate):
        values = [request.prompt or ""]
    elif not values:  # a chat of a function or a column, which may have other parts than texts
        said = [one.get("content") for one in request.messages or () if one.get("role") != "system"]
        values = [one if isinstance(one, str) else "other" for one in said]
    return bool(values) and not any(value.strip() for value in values)


def is_blank_row(row: Mapping[str, Any], columns: Iterable[str]) -> bool:
    """Whether a row has only nulls and blank text in columns; ``False`` without any."""
    values = [row.get(name) for name in columns]
    return bool(values) and all(
        value is None or (isinstance(value, str) and not value.strip()) for value in values
    )


def with_texts(request: Request, change: Callable[[str], str]) -> Request:
    """The request with `change` applied to each text."""
    if request.messages is None:
        return replace(request, prompt=change(request.prompt or ""))
    return replace(request, messages=_changed(request.messages, change))


def shortened(
    request: Request, tokens_of: Callable[[Request], int], tokens: int, most: int
) -> Request | None:
    """The request with its longest values cut to one number of characters.

    :param tokens_of: counts the tokens of a request.
    :param tokens: that the whole request has.
    :param most: tokens that the result may have.
    :returns: ``None`` if the template alone has more.
    """
    longest = max((len(value) for text in texts_of(request) for value in _values(text)), default=0)

    def cut(characters: int) -> Request:
        return with_texts(
            request, lambda text: text.cut(characters) if isinstance(text, FilledTemplate) else text
        )

    fits, too_long = 0, longest
    fitting, exceeding = tokens_of(cut(0)), tokens
    for number in range(_TRIES):
        if fitting > most or too_long - fits <= 1 or most - fitting <= most * _NEAR:
            break
        ratio = (most - fitting) / max(1, exceeding - fitting) if number < _BY_RATIO else 0.5
        guess = min(max(fits + int((too_long - fits) * ratio), fits + 1), too_long - 1)
        found = tokens_of(cut(guess))
        if found <= most:
            fits, fitting = guess, found
        else:
            too_long, exceeding = guess, found
    return cut(fits) if fits else None


def _values(text: str) -> Sequence[str]:
    return text.values if isinstance(text, FilledTemplate) else ()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif value == IMAGE_PART:
        return
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if value == IMAGE_PART:
        return value
    if isinstance(value, dict):
        return {name: _changed(inner, change) for name, inner in value.items()}
    return [_changed(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value
