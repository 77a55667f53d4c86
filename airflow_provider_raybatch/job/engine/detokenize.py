# SPDX-License-Identifier: Apache-2.0
"""From token ids to the text that vLLM itself would make of them, on batches.

vLLM detokenises token by token on its event loop, which a fast engine has to wait for. A plain decoding
differs from its text in four ways: the token that ends a completion is left out, a completion goes on from
its prompt (some tokenisers drop a leading space otherwise), half a character at the end is left out, and
spaces before punctuation stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HALF_A_CHARACTER = "\ufffd"
_NEEDS_VLLM = ("stop", "bad_words", "include_stop_str_in_output")


@dataclass(frozen=True)
class Generated:
    """One completion. `prompt` are the ids that it goes on from."""

    prompt: Sequence[int]
    ids: Sequence[int]
    finish_reason: str | None


def special_texts(tokenizer: Any) -> dict[int, str]:
    """The special tokens of a Hugging Face tokeniser, by id."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return {number: str(token.content) for number, token in added.items() if token.special}


class Detokenizer:
    """Decodes completions with a Hugging Face tokeniser.

    :param keeps_special: whether special tokens stay in the texts.
    """

    def __init__(self, tokenizer: Any, keeps_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._keeps_special = keeps_special
        # vLLM has code of its own for slow tokenisers.
        self._is_fast = bool(getattr(tokenizer, "is_fast", False))
        self._special = special_texts(tokenizer)
        self._texts: dict[int, str] = {}

    def leaves_to_vllm(self, sampling: Mapping[str, Any]) -> bool:
        """Whether vLLM has to decode: it looks for text, or decodes in another way."""
        return (
            not self._is_fast
            or any(sampling.get(name) for name in _NEEDS_VLLM)
            or sampling.get("skip_special_tokens", True) is False
            or sampling.get("spaces_between_special_tokens", True) is False
        )

    def decode(self, completions: Sequence[Generated]) -> list[str]:
        """The texts of completions that were requested without a text."""
        before = [self._last_visible(one.prompt) for one in completions]
        kept = [list(one.ids[:-1] if one.finish_reason == "stop" else one.ids) for one in completions]
        decoded = self._decode([last + ids for last, ids in zip(before, kept, strict=True)])
        return [self._after(last, ids, text) for last, ids, text in zip(before, kept, decoded, strict=True)]

    def _after(self, last: list[int], ids: list[int], text: str) -> str:
        while ids and text.endswith(_HALF_A_CHARACTER):
            ids = ids[:-1]
            (text,) = self._decode([last + ids])
        start = self._text_of(last[0]) if last else ""
        if not text.startswith(start):
            (text,) = self._decode([ids])
            start = ""
        return text[len(start) :]

    def _last_visible(self, prompt: Sequence[int]) -> list[int]:
        hidden = () if self._keeps_special else self._special
        return next(([number] for number in reversed(prompt) if number not in hidden), [])

    def _text_of(self, number: int) -> str:
        if number not in self._texts:
            (self._texts[number],) = self._decode([[number]])
        return self._texts[number]

    def _decode(self, batch: list[list[int]]) -> list[str]:
        if not batch:
            return []  # Transformers 5 makes one empty text of it
        texts: list[str] = self._tokenizer.batch_decode(
            batch, skip_special_tokens=not self._keeps_special, clean_up_tokenization_spaces=False
        )
        return texts
