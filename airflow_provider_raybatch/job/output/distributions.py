# SPDX-License-Identifier: Apache-2.0
"""How often each answer came, and how long prompts and answers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.report import Answer, Bin
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import storable, without_queries
from airflow_provider_raybatch.job.tasks.base import Task

_MOST_BINS = 20
_TAIL = 0.99
"""Share of the rows that bins of one width show, if the longest row is more than twice as long as they."""


class Lengths:
    """Counts lengths. They are kept exactly, since a model's context bounds how many of them differ."""

    def __init__(self) -> None:
        self._rows: Counter[int] = Counter()

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count one row for each length."""
        found, rows = np.unique(lengths, return_counts=True)
        self._rows.update(dict(zip(found.tolist(), rows.tolist(), strict=True)))

    def merge(self, other: Lengths) -> None:
        """Add what `other` has counted."""
        self._rows.update(other._rows)

    @property
    def bins(self) -> list[Bin]:
        """At most 21 bins of one width, from the least length on; the last one may hold a long tail."""
        if not self._rows:
            return []
        lengths = sorted(self._rows)
        usual = self._usual(lengths)
        width = _nice(-(-(usual - lengths[0] + 1) // _MOST_BINS))
        first = lengths[0] // width * width
        most = (usual - first) // width + 1
        rows: Counter[int] = Counter()
        for length in lengths:
            rows[min((length - first) // width, most)] += self._rows[length]
        made = [
            Bin(first=first + n * width, last=first + (n + 1) * width - 1, rows=rows[n]) for n in range(most)
        ]
        tail = Bin(first=first + most * width, last=lengths[-1], rows=rows[most])
        return [*made, tail] if tail.rows else made

    def _usual(self, lengths: Sequence[int]) -> int:
        """The longest length that gets bins of its own."""
        left = _TAIL * sum(self._rows.values())
        for length in lengths:
            left -= self._rows[length]
            if left <= 0:
                break
        return lengths[-1] if lengths[-1] <= 2 * max(1, length) else length


def _nice(least: int) -> int:
    """The smallest of 1, 2, 5, 10, ... that is at least `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


MOST, LONGEST = 50, 60
"""Different answers, and characters of one; with more, nothing is counted any more."""
_FIRST, _AT_ONCE = 1000, 50_000
"""Answers that are looked at together: texts are given up after the first ones."""


class Answers:
    """Counts answers. `counts` is ``None`` once they are too many or too long.

    :param are_chosen: whether they come from a list, so that each is telling.
    """

    def __init__(self, are_chosen: bool = False) -> None:
        self._are_chosen = are_chosen
        self.counts: Counter[str] | None = Counter()

    def add(self, answers: pa.ChunkedArray | None) -> None:
        """Count the answers of some rows; ``None`` where the task's answers are not text."""
        if answers is None:
            self.counts = None
            return
        start, size = 0, _FIRST
        while self.counts is not None and start < len(answers):
            some = answers.slice(start, size)
            longest = pc.max(pc.utf8_length(some)).as_py() or 0
            self._count(None if longest > LONGEST else pc.value_counts(some).to_pylist())
            start, size = start + size, _AT_ONCE

    def merge(self, other: Answers) -> None:
        """Add what `other` has counted."""
        found = other.counts
        self._count(None if found is None else [{"values": a, "counts": n} for a, n in found.items()])

    def _count(self, found: list[dict[str, object]] | None) -> None:
        if found is None or self.counts is None:
            self.counts = None
            return
        for one in found:
            if one["values"] is not None:
                self.counts[without_queries(storable(str(one["values"]).strip()))] += int(str(one["counts"]))
        if len(self.counts) > MOST:
            self.counts = None

    @property
    def few(self) -> list[Answer] | None:
        """The most frequent first; ``None`` where texts are as many as rows, which tells nothing."""
        if not self.counts:
            return None
        if not self._are_chosen and 2 * len(self.counts) > self.counts.total():
            return None
        return [Answer(text=text, rows=rows) for text, rows in self.counts.most_common()]


def answers_in(good: pa.Table, task: Task) -> pa.ChunkedArray | None:
    """The answers of good rows as texts: of one typed column its values, else the responses."""
    if len(task.derived) == 1:
        (kind,) = task.derived.values()
        if not pa.types.is_nested(kind):
            return pc.cast(pc.struct_field(good["derived"], [0]), pa.string())
    response = task.output_type[0]
    return pc.struct_field(good["output"], [0]) if pa.types.is_string(response.type) else None


def are_chosen(spec: BatchInferenceSpec) -> bool:
    """Whether answers come from a list."""
    outputs = spec.sampling.get("structured_outputs")
    return spec.model_task == "classify" or (isinstance(outputs, dict) and "choice" in outputs)
