# SPDX-License-Identifier: Apache-2.0
"""Log probabilities from vLLM's flat lists to arrays, with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import Response, TokenLogprobs


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
