# SPDX-License-Identifier: Apache-2.0
"""Many failed rows in one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from airflow_provider_raybatch.contract.text import without_queries
from airflow_provider_raybatch.job.failures.public_reasons import public_reason
from airflow_provider_raybatch.job.row import RowFailure

_MOST_SHOWN = 3
_LONGEST_REASON = 100
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(?:[.,]\d+)*")


def counted(failures: Iterable[tuple[int, RowFailure]], *, shows_rows: bool) -> str:
    """How many rows failed by step and reason, the most frequent first, each with one row as an example.

    Reasons that differ only in numbers and quoted values count as one.

    :param failures: each with the row's position in the input.
    :param shows_rows: whether a reason may quote its row.
    """
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for ordinal, failure in failures:
        reason = failure.reason if shows_rows else public_reason(failure)
        kind = failure.step, kind_of_reason(reason)
        counts[kind] += 1
        examples.setdefault(kind, f"row {ordinal}: {_short(reason)}")
    shown = counts.most_common(_MOST_SHOWN)
    told = [f"{count:,} in step {kind[0]!r} ({examples[kind]})" for kind, count in shown]
    others = counts.total() - sum(count for _, count in shown)
    return ", ".join([*told, *([f"{others:,} for other reasons"] if others else [])])


def main_reasons(failures: Iterable[RowFailure], *, shows_rows: bool) -> dict[str, tuple[int, str]]:
    """By step how many rows failed for its most frequent reason, and the first sentence of that.

    :param shows_rows: whether a reason may quote its row.
    """
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for failure in failures:
        reason = failure.reason if shows_rows else public_reason(failure)
        sentence = _SENTENCE.split(reason.strip(), maxsplit=1)[0]
        kind = failure.step, kind_of_reason(sentence)
        counts[kind] += 1
        examples.setdefault(kind, _short(sentence))
    found: dict[str, tuple[int, str]] = {}
    for kind, count in counts.most_common():
        found.setdefault(kind[0], (count, examples[kind]))
    return found


def kind_of_reason(reason: str) -> str:
    """The same for reasons that differ only in numbers and quoted values."""
    return _VALUE.sub("#", reason)


def _short(reason: str) -> str:
    flat = " ".join(without_queries(reason).split()).rstrip(".")
    return flat if len(flat) <= _LONGEST_REASON else flat[: _LONGEST_REASON - 3] + "..."
