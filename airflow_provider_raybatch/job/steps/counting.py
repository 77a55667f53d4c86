# SPDX-License-Identifier: Apache-2.0
"""How many rows each step has asked, and the tokens of their answers, by the rows that are published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN, AskedStep
from airflow_provider_raybatch.contract.step_counts import StepCounts
from airflow_provider_raybatch.job.input.table import members
from airflow_provider_raybatch.job.steps.found import Found
from airflow_provider_raybatch.job.tasks.base import Totals

_TOKENS = ("input_tokens", "cached_tokens", "output_tokens")


@dataclass(frozen=True)
class Answered:
    """Answers to one step.

    :param rows: that have one.
    :param rejected: of these, those that went on with another response than was asked for.
    """

    rows: int = 0
    rejected: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Answered) -> Answered:
        """The sums of both."""
        return Answered(*(mine + theirs for mine, theirs in zip(_values(self), _values(other), strict=True)))


def _values(one: Answered) -> list[int]:
    return [one.rows, one.rejected, one.input_tokens, one.cached_tokens, one.output_tokens]


def answered(step: AskedStep | None, good: pa.Table, bad: pa.Table) -> list[Answered]:
    """The answers to each step in rows of parts of the last one; none for a job that asks one question.

    :param good: rows that are complete, and `bad` those that have failed.
    """
    if step is None:
        return []
    earlier = [_members(rows, "input") for rows in (good, bad)]
    found = [sum((_of(rows, f"{name}_") for rows in earlier), Answered()) for name in step.earlier]
    return [*found, _of(_members(good, "output"), "")]


def _members(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    return members(rows[name]) if rows.num_rows and name in rows.schema.names else {}


def _of(columns: Mapping[str, pa.Array], prefix: str) -> Answered:
    """The answers in the columns with a prefix."""
    tokens = [columns[prefix + name] for name in _TOKENS if prefix + name in columns]
    if len(tokens) < len(_TOKENS):
        return Answered()
    rejected = columns.get(prefix + REJECTED_COLUMN)
    return Answered(
        len(tokens[0]) - tokens[0].null_count,
        0 if rejected is None else len(rejected) - rejected.null_count,
        *(int(pc.sum(column).as_py() or 0) for column in tokens),
    )


def added_up(found: Sequence[Sequence[Answered]]) -> list[Answered]:
    """The answers to each step, of all ranges."""
    return [sum(of_step, Answered()) for of_step in zip(*(one for one in found if one), strict=True)]


def with_earlier(totals: Totals, found: Sequence[Answered]) -> Totals:
    """The tokens of all steps; those of the last one are in `totals` already."""
    earlier = sum(found[:-1], Answered())
    return replace(
        totals,
        input_tokens=totals.input_tokens + earlier.input_tokens,
        cached_tokens=totals.cached_tokens + earlier.cached_tokens,
        output_tokens=totals.output_tokens + earlier.output_tokens,
    )


def generated_earlier(found: Sequence[Answered], instead: Sequence[Found]) -> int:
    """Tokens that the submission generated for all steps but the last one.

    :param instead: of each of these steps, what was not generated.
    """
    pairs = zip(found[:-1], instead, strict=True) if found else ()
    return sum(max(0, one.output_tokens - known.output_tokens) for one, known in pairs)


def step_counts(
    step: AskedStep | None,
    found: Sequence[Answered],
    rows: int,
    failed: Mapping[str, int],
    instead: Sequence[Found],
) -> list[StepCounts] | None:
    """What became of each step.

    :param rows: of the input.
    :param failed: how many rows failed, by step and what it did, such as ``judge.parse``.
    :param instead: of each step, which of its answers were not generated.
    """
    if step is None or not found:
        return None
    errors: Counter[str] = Counter()
    for name, count in failed.items():
        errors[name.partition(".")[0]] += count
    made, left = [], rows
    for name, one, known in zip([*step.earlier, step.step.name], found, instead, strict=True):
        asked = one.rows + errors[name]
        made.append(
            StepCounts(
                name=name,
                asked=asked,
                skipped=max(0, left - asked),
                ok=one.rows - one.rejected,
                rejected=one.rejected,
                errors=errors[name],
                input_tokens=one.input_tokens,
                cached_tokens=one.cached_tokens,
                output_tokens=one.output_tokens,
                resumed=min(one.rows, known.resumed),
                reused=min(one.rows, known.reused),
                tokens_saved=min(one.input_tokens + one.output_tokens, known.saved),
            )
        )
        left -= errors[name]  # which no later step asks
    return made
