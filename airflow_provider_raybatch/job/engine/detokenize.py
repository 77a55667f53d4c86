# SPDX-License-Identifier: Apache-2.0
"""From token ids to the text that vLLM itself would make of them, and to log probabilities, on batches.

vLLM detokenises token by token on its event loop, which a fast engine has to wait for. A plain decoding
differs from its text in four ways: the token that ends a completion is left out, a completion goes on from
its prompt (some tokenisers drop a leading space otherwise), half a character at the end is left out, and
spaces before punctuation stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import Response, TokenLogprobs

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


class LogprobReader:
    """Reads the log probabilities of a job's responses.

    :param tokenizer: a Hugging Face tokeniser.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def added(self, response: Response, output: Any) -> Response:
        """The response with the log probabilities that its request asked for.

        :param output: vLLM's.
        """
        completions = tuple(
            one
            if generated.logprobs is None
            else replace(one, extra={**one.extra, "logprobs": self.read(generated.logprobs)})
            for one, generated in zip(response.completions, output.outputs, strict=True)
        )
        response = replace(response, completions=completions)
        if output.prompt_logprobs is None:
            return response
        read = self.read(output.prompt_logprobs, output.prompt_token_ids[0])
        return replace(response, extra={**response.extra, "prompt_logprobs": read})

    def read(self, flat: Any, first: int | None = None) -> TokenLogprobs:
        """The arrays of one text.

        :param flat: vLLM's ``FlatLogprobs``: at each position the token, then its alternatives.
        :param first: id of the token at a position without any, the first of a prompt.
        """
        starts = np.array(flat.start_indices, np.int64)
        sizes = np.array(flat.end_indices, np.int64) - starts
        width = max(1, int(sizes.max(initial=1)))
        is_there = np.arange(width) < sizes[:, None]
        ids: npt.NDArray[np.int32] = np.full((len(sizes), width), -1, np.int32)
        ids[is_there] = flat.token_ids
        logprobs: npt.NDArray[np.float32] = np.full(ids.shape, np.nan, np.float32)
        logprobs[is_there] = flat.logprobs
        ranks: npt.NDArray[np.int32] = np.zeros(len(sizes), np.int32)
        ranks[sizes > 0] = [flat.ranks[start] or 0 for start in starts[sizes > 0].tolist()]
        if first is not None:
            ids[sizes == 0, 0] = first
        found = np.unique(ids[ids >= 0]).tolist()
        return TokenLogprobs(ids, logprobs, ranks, self._texts_of(found))

    def _texts_of(self, ids: Iterable[int]) -> dict[int, str]:
        """Each token decoded alone, as vLLM does it."""
        new = [number for number in ids if number not in self._texts]
        if new:
            texts = self._tokenizer.batch_decode([[number] for number in new])
            self._texts.update(zip(new, texts, strict=True))
        return {number: self._texts[number] for number in ids}
