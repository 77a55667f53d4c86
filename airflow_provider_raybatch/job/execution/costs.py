# SPDX-License-Identifier: Apache-2.0
"""How long answers are expected to be: known beforehand, or learned from the first finished rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.execution.pieces import Ordinals, Pieces

_LABELS = 256
_STEPS_AN_OCTAVE = 4
_ROWS_TO_LEARN_FROM = 16
_USUAL = 256.0
"""Tokens of an answer while nothing is known of any."""


class Costs:
    """Output tokens expected of a row, by its label.

    Rows are ranked by them in steps of a quarter of an octave (19 %): what is about equally long keeps its
    order on disk.

    :param known: tokens by label, such as the lengths of an earlier run.
    :param assumed: tokens by label until they are learned, such as limits of rows.
    """

    def __init__(
        self, known: Mapping[int, float] | None = None, assumed: Mapping[int, float] | None = None
    ) -> None:
        self._known = dict(known or {})
        self._assumed = dict(assumed or {})
        self._rows = [0] * _LABELS
        self._tokens = [0.0] * _LABELS
        self._look_again = [_ROWS_TO_LEARN_FROM] * _LABELS
        self.version = 0
        """Grows when ranks change: a few times with each doubling of the rows that are learned from."""
        self._ranks = self._ranked()

    def learn(self, lengths: Mapping[int, tuple[int, float]]) -> None:
        """Count finished rows.

        :param lengths: by label, the number of rows and the sum of their output tokens.
        """
        changes = False
        for label, (rows, tokens) in lengths.items():
            self._rows[label] += rows
            self._tokens[label] += tokens
            if self._rows[label] >= self._look_again[label] and label not in self._known:
                self._look_again[label] = 2 * self._rows[label]
                changes = True
        if changes:
            ranks = self._ranked()
            if (ranks != self._ranks).any():
                self._ranks = ranks
                self.version += 1

    def of(self, pieces: Pieces, rows: Ordinals) -> npt.NDArray[np.int64]:
        """A rank for each row: the higher, the longer its answer."""
        if pieces.labels is None:
            return np.zeros(len(rows), dtype=np.int64)
        return self._ranks[pieces.labels[rows]]

    def rank(self, label: int) -> int:
        """The higher, the longer the answer."""
        return int(self._ranks[label])

    def order(self, pieces: Pieces) -> npt.NDArray[np.int64]:
        """The pieces with rows to be done: those with the longest answers on average first, else as on disk.

        Only what is known beforehand decides, since this is made once.
        """
        left = np.flatnonzero(pieces.left > 0)
        if pieces.labels is None or not self._known:
            return left
        means = np.array([self._ranks[pieces.labels[pieces.rows(int(piece))]].mean() for piece in left])
        return left[np.argsort(-np.round(means), kind="stable")]

    def _ranked(self) -> npt.NDArray[np.int64]:
        learned = {
            label: self._tokens[label] / rows
            for label, rows in enumerate(self._rows)
            if rows >= _ROWS_TO_LEARN_FROM
        }
        expected = {**learned, **self._known}
        # What nothing is known of is taken for average: neither all of it first, nor all of it last.
        other = sum(expected.values()) / len(expected) if expected else _USUAL
        expected = {**self._assumed, **expected}
        return np.array([_rank(expected.get(label, other)) for label in range(_LABELS)], dtype=np.int64)


def _rank(tokens: float) -> int:
    return round(_STEPS_AN_OCTAVE * math.log2(max(1.0, tokens)))
