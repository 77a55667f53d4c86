# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of an echo's words, which count as tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.logprobs import are_asked
from airflow_provider_raybatch.job.row import Completion, Response, TokenLogprobs


def added(response: Response, prompt: str, sampling: Mapping[str, Any]) -> Response:
    """The response with the log probabilities that its request asks for.

    :param sampling: parameters of the request.
    """
    if are_asked(sampling, "logprobs"):
        most = int(sampling["logprobs"])
        completions = tuple(
            replace(one, extra={**one.extra, "logprobs": of_words(_generated(one), most)})
            for one in response.completions
        )
        response = replace(response, completions=completions)
    if are_asked(sampling, "prompt_logprobs"):
        made = of_words(prompt.split(), int(sampling["prompt_logprobs"]), has_first=False)
        response = replace(response, extra={**response.extra, "prompt_logprobs": made})
    return response


def _generated(completion: Completion) -> list[str]:
    """As many words as the completion has tokens."""
    before = str(completion.extra.get("reasoning") or "").split()
    words, tokens = completion.text.split(), completion.output_tokens - len(before)
    return [*before, *(words if len(words) == tokens else [completion.text] * tokens)]


def of_words(words: Sequence[str], alternatives: int, has_first: bool = True) -> TokenLogprobs:
    """Each word is the likeliest of its place, with a probability that a hash of it decides.

    :param alternatives: how many of the likeliest words: the word itself, then it with a number.
    :param has_first: whether the first word has a log probability; that of a prompt has none.
    """
    texts: dict[int, str] = {}
    ids, logprobs = [], []
    for word in words:
        likely = [
            word,
            *(word if number == 1 else f"{word}#{number}" for number in range(1, alternatives + 1)),
        ]
        numbers = [crc32(one.encode(errors="replace")) >> 1 for one in likely]
        texts.update(zip(numbers, likely, strict=True))
        chance = 0.5 + numbers[0] % 1000 / 2001
        rest = [chance, *(chance if n == 1 else (1 - chance) / 2**n for n in range(1, alternatives + 1))]
        ids.append(numbers)
        logprobs.append(list(map(math.log, rest)))
    made = np.array(logprobs, np.float32).reshape(len(words), alternatives + 1)
    found = np.array(ids, np.int32).reshape(len(words), alternatives + 1)
    ranks: npt.NDArray[np.int32] = np.ones(len(words), np.int32)
    if not has_first and len(words):
        made[0], found[0, 1:], ranks[0] = np.nan, -1, 0
    return TokenLogprobs(found, made, ranks, texts)
