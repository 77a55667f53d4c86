# SPDX-License-Identifier: Apache-2.0
"""The distribution of prompt lengths, and what a smaller context would cut off. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.preview import CutOff, PromptTokens
from airflow_provider_raybatch.job.preview.tokens import PromptLength

_SMALLEST = 128
_MOST_CUT_OFFS = 8
Lengths: TypeAlias = npt.NDArray[np.int64]


def prompt_tokens(lengths: Sequence[PromptLength], context: int, is_sample: bool) -> PromptTokens:
    """The figures of counted rows.

    :param context: of the model as the job would use it.
    """
    whole = np.array([one.whole for one in lengths], np.int64)
    sent = np.array([one.sent for one in lengths], np.int64)
    most = np.array([one.max_tokens for one in lengths], np.int64)
    good = np.sort(sent[sent >= 0])
    known = whole >= 0
    return PromptTokens(
        rows=len(lengths),
        failed=int(np.count_nonzero(sent < 0)),
        is_sample=is_sample,
        total=int(good.sum()),
        p50=_quantile(good, 0.5),
        p95=_quantile(good, 0.95),
        p99=_quantile(good, 0.99),
        longest=int(whole.max(initial=0)),
        context=context,
        max_tokens=int(most.max()) if len(most) and (most >= 0).all() else None,
        cut_offs=tuple(_cut_offs(whole[known], most[known], context)),
    )


def _quantile(ascending: Lengths, share: float) -> int:
    """The smallest length that at least this share of the rows does not exceed."""
    return int(ascending[math.ceil(share * len(ascending)) - 1]) if len(ascending) else 0


def _cut_offs(whole: Lengths, most: Lengths, context: int) -> list[CutOff]:
    """Powers of two below the context, from the first at which a row fits to the first that costs nothing."""
    found: list[CutOff] = []
    wanted = whole + np.maximum(most, 1)  # without a limit, a response takes what room there is
    size = _SMALLEST
    while size < context and len(whole):
        failed = int(np.count_nonzero(whole >= size))
        shortened = int(np.count_nonzero((whole < size) & (wanted > size)))
        if failed < len(whole):
            found.append(CutOff(max_model_len=size, failed=failed, shortened=shortened))
        if not failed and not shortened:
            break
        size *= 2
    return found[-_MOST_CUT_OFFS:]
