# SPDX-License-Identifier: Apache-2.0
"""How long a row's answer is expected to be: by its limit or its prompt, or learned from the first rows."""

from __future__ import annotations

import math

import numpy as np

from airflow_provider_raybatch.job.row import Request, RowFailure

UNKNOWN = 0
"""The label of rows whose length is unknown."""
_LABELS = 256
_FIRST_OF_PROMPTS = 128
"""Labels from 1 on are limits, and those from here on are lengths of prompts."""
STEPS_AN_OCTAVE = 4
"""Steps between the labels of two lengths, one of them twice the other."""
_ROWS_TO_LEARN_FROM = 16
_USUAL = 256.0
"""Tokens of an answer while nothing is known of any."""


def label(request: Request | RowFailure) -> int:
    """The class of rows whose answers are about as long as this one's, a byte.

    A row's own `max_tokens` says more than the length of its prompt. Both are in steps of 19 %.
    """
    if isinstance(request, RowFailure):
        return UNKNOWN
    limit = request.sampling.get("max_tokens")
    if isinstance(limit, float) and limit.is_integer():  # of pandas
        limit = int(limit)
    if isinstance(limit, int) and limit > 0:
        return 1 + min(_FIRST_OF_PROMPTS - 2, _steps(limit))
    return _FIRST_OF_PROMPTS + min(_FIRST_OF_PROMPTS - 1, _steps(request.characters))


def is_limit(label: int) -> bool:
    """Whether a label is a row's own `max_tokens`."""
    return UNKNOWN < label < _FIRST_OF_PROMPTS


def shortness(request: Request) -> int:
    """How short its answer must be by the row's own limit, on the scale of labels; 0 without a limit."""
    return max(0, _FIRST_OF_PROMPTS - label(request))


def limits() -> dict[int, float]:
    """Output tokens by label, where the label is a limit."""
    return {label: 2.0 ** ((label - 1) / STEPS_AN_OCTAVE) for label in range(1, _FIRST_OF_PROMPTS)}


class Costs:
    """Output tokens expected of an answer, by the row's label: its limit, until lengths are learned."""

    def __init__(self) -> None:
        self._rows = [0] * _LABELS
        self._tokens = [0.0] * _LABELS
        self._learn_at = [_ROWS_TO_LEARN_FROM] * _LABELS
        self.expected = self._expected()
        self._ranks = _ranks(self.expected)

    def rank(self, label: int) -> int:
        """The higher, the longer the answer, in steps of 19 %: about equal rows keep their order on disk."""
        return self._ranks[label]

    def learn(self, label: int, tokens: float) -> bool:
        """Count a row's answer. Returns whether ranks have changed, as with each doubling of rows."""
        self._rows[label] += 1
        self._tokens[label] += tokens
        if self._rows[label] < self._learn_at[label]:
            return False
        self._learn_at[label] = 2 * self._rows[label]
        self.expected = self._expected()
        before, self._ranks = self._ranks, _ranks(self.expected)
        return before != self._ranks

    def _expected(self) -> list[float]:
        learned = {
            label: self._tokens[label] / rows
            for label, rows in enumerate(self._rows)
            if rows >= _ROWS_TO_LEARN_FROM
        }
        # Unknown lengths count as average, so those rows are neither all first nor all last.
        other = sum(learned.values()) / len(learned) if learned else _USUAL
        return [*{**dict.fromkeys(range(_LABELS), other), **limits(), **learned}.values()]


def _ranks(sizes: list[float]) -> list[int]:
    """See :func:`_steps`, for many."""
    ranks: list[int] = np.rint(STEPS_AN_OCTAVE * np.log2(np.maximum(1.0, sizes))).astype(int).tolist()
    return ranks


def _steps(size: float) -> int:
    return round(STEPS_AN_OCTAVE * math.log2(max(1.0, size)))
