# SPDX-License-Identifier: Apache-2.0
"""How often each answer came, as long as few differ: labels, choices, short typed values."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.report import Answer
from airflow_provider_raybatch.contract.shown_uri import without_queries
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import storable
from airflow_provider_raybatch.job.tasks.base import Task

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
