# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of a response's tokens, or of a prompt's, and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.row import Completion, Response, TokenLogprobs
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns, ResponseColumns

_LIKELY = pa.struct([("token_id", pa.int32()), ("token", pa.string()), ("logprob", pa.float32())])
TOKENS = pa.list_(pa.struct([*_LIKELY, ("rank", pa.int32()), ("top_logprobs", pa.list_(_LIKELY))]))
"""A struct for each token; `top_logprobs` are the likeliest tokens in its place, of which it may be one."""


class Logprobs(CompletionColumns):
    """The columns ``logprobs`` and ``mean_logprob``, of all generated tokens, reasoning included."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"logprobs": TOKENS, "mean_logprob": pa.float64()}

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        found = [completion.extra.get("logprobs") for completion in completions]
        return [token_lists(found), means(found)]


class PromptLogprobs(ResponseColumns):
    """The columns ``prompt_logprobs`` and ``prompt_mean_logprob``."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"prompt_logprobs": TOKENS, "prompt_mean_logprob": pa.float64()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        found = [response.extra.get("prompt_logprobs") for response in responses]
        return [token_lists(found), means(found)]


def means(found: Sequence[TokenLogprobs | None]) -> pa.Array:
    """The mean of the tokens' log probabilities of each text: its perplexity is exp(-mean)."""

    def mean(one: TokenLogprobs | None) -> float | None:
        known = np.zeros(0) if one is None else one.logprobs[~np.isnan(one.logprobs[:, 0]), 0]
        return float(known.mean(dtype=np.float64)) if len(known) else None

    return pa.array(list(map(mean, found)), pa.float64())


def token_lists(found: Sequence[TokenLogprobs | None]) -> pa.ListArray:
    """A list of tokens for each text; null for ``None``."""
    there = [one for one in found if one is not None]
    texts = {number: text for one in there for number, text in one.texts.items()}
    ids = _together([one.ids[:, 0] for one in there], np.int32)
    logprobs = _together([one.logprobs[:, 0] for one in there], np.float32)
    ranks = _together([one.ranks for one in there], np.int32)
    columns = [*_likely(ids, logprobs, texts), pa.array(ranks, mask=ranks == 0), _likeliest(there, texts)]
    tokens = pa.StructArray.from_arrays(columns, fields=list(TOKENS.value_type))
    offsets = _offsets([0 if one is None else len(one.ids) for one in found])
    missing = pa.array([one is None for one in found], pa.bool_())
    return pa.ListArray.from_arrays(offsets, tokens, type=TOKENS, mask=missing)


def _likeliest(found: Sequence[TokenLogprobs], texts: Mapping[int, str]) -> pa.ListArray:
    """The alternatives of all tokens."""
    is_there = [one.ids[:, 1:] >= 0 for one in found]
    ids = _together([one.ids[:, 1:][mask] for one, mask in zip(found, is_there, strict=True)], np.int32)
    logprobs = _together(
        [one.logprobs[:, 1:][mask] for one, mask in zip(found, is_there, strict=True)], np.float32
    )
    tokens = pa.StructArray.from_arrays(_likely(ids, logprobs, texts), fields=list(_LIKELY))
    sizes = _together([mask.sum(1) for mask in is_there], np.int64)
    return pa.ListArray.from_arrays(_offsets(sizes), tokens, type=pa.list_(_LIKELY))


def _likely(
    ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32], texts: Mapping[int, str]
) -> list[pa.Array]:
    unique, places = np.unique(ids, return_inverse=True)
    known = pa.array([texts.get(number) for number in unique.tolist()], pa.string())
    return [pa.array(ids), known.take(pa.array(places)), pa.array(logprobs, mask=np.isnan(logprobs))]


def _offsets(sizes: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _together(arrays: Sequence[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays])
