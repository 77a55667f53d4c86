# SPDX-License-Identifier: Apache-2.0
"""How many rows each step has asked, and the tokens of their answers, by the rows that are published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN
from airflow_provider_raybatch.contract.run_numbers import StepCounts
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.table import members
from airflow_provider_raybatch.job.steps.known import OldAnswers
from airflow_provider_raybatch.job.tasks.base import Totals

_TOKENS = frozenset({"input_tokens", "cached_tokens", "output_tokens"})


@dataclass(frozen=True)
class Answered:
    """Answers to one step, those of rows that failed later among them.

    :param rows: that have one.
    :param rejected: of these, those that went on with another response than was asked for.
    :param reasoning_tokens: of `output_tokens`, those before the answers.
    :param resumed: rows whose answers earlier jobs had generated, and `reused`, which the response store had.
    :param duplicates: rows with the answer of an equal request.
    :param resumed_tokens: input and output tokens of these answers; so are the other two.
    :param saved_tokens: the same of answers that the run did not pay for, in an earlier attempt either.
    :param generated_tokens: of `output_tokens`, those of answers that were not there before the job.
    """

    rows: int = 0
    rejected: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    resumed: int = 0
    reused: int = 0
    duplicates: int = 0
    resumed_tokens: int = 0
    reused_tokens: int = 0
    duplicate_tokens: int = 0
    saved_tokens: int = 0
    generated_tokens: int = 0

    def __add__(self, other: Answered) -> Answered:
        """The sums of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Answered(*(mine + theirs for mine, theirs in pairs))


def answered(
    spec: BatchInferenceSpec, good: pa.Table, bad: pa.Table, old: Sequence[OldAnswers]
) -> list[Answered]:
    """The answers to each step in rows of parts of the last one; none for a job that asks one question.

    :param spec: of the last step.
    :param good: rows that are complete, and `bad` those that have failed.
    :param old: of each step before the last one, which answers were there before the job.
    """
    if not spec.step_name:
        return []
    rows = [_Rows(_members(table, "input"), _ordinals(table)) for table in (good, bad)]
    found = [
        sum((_of(one, f"{name}_", known) for one in rows), Answered())
        for name, known in zip(spec.question.earlier, old, strict=True)
    ]
    return [*found, _of(_Rows(_members(good, "output"), _ordinals(good)), "", _old_rows(good))]


class _Rows(NamedTuple):
    columns: Mapping[str, pa.Array]
    ordinals: npt.NDArray[np.int64]


def _ordinals(rows: pa.Table) -> npt.NDArray[np.int64]:
    return rows["ordinal"].to_numpy().astype(np.int64)


def _members(rows: pa.Table, name: str) -> dict[str, pa.Array]:
    return members(rows[name]) if rows.num_rows and name in rows.schema.names else {}


def _old_rows(good: pa.Table) -> OldAnswers:
    """The answers to the last step that were there before the job, which their rows say themselves."""
    rows = good.filter(pc.not_equal(good["origin"], "generated"))
    stored, shared = (
        pc.equal(rows["origin"], origin).to_numpy().astype(np.bool_) for origin in ("stored", "duplicate")
    )
    return OldAnswers(_ordinals(rows), stored, shared, rows["paid"].to_numpy().astype(np.bool_))


def _of(rows: _Rows, prefix: str, old: OldAnswers) -> Answered:
    """The answers in the columns with a prefix."""
    columns = {
        name.removeprefix(prefix): one for name, one in rows.columns.items() if name.startswith(prefix)
    }
    if not columns.keys() >= _TOKENS:
        return Answered()
    is_asked = columns["input_tokens"].is_valid().to_numpy(zero_copy_only=False)
    of_input, of_cached, of_output, of_reasoning = (
        pc.fill_null(columns[name], 0).to_numpy() if name in columns else np.zeros(len(is_asked), np.int64)
        for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    )
    places, at = old.places(rows.ordinals)
    has_answer = is_asked[places]
    places, at = places[has_answer], at[has_answer]
    both, stored, shared, paid = (of_input + of_output)[places], old.stored[at], old.shared[at], old.paid[at]
    resumed = ~(stored | shared)
    rejected = columns.get(REJECTED_COLUMN)
    return Answered(
        rows=int(is_asked.sum()),
        rejected=0 if rejected is None else len(rejected) - rejected.null_count,
        input_tokens=int(of_input.sum()),
        cached_tokens=int(of_cached.sum()),
        output_tokens=int(of_output.sum()),
        reasoning_tokens=int(of_reasoning.sum()),
        resumed=int(resumed.sum()),
        reused=int(stored.sum()),
        duplicates=int(shared.sum()),
        resumed_tokens=int(both[resumed].sum()),
        reused_tokens=int(both[stored].sum()),
        duplicate_tokens=int(both[shared].sum()),
        saved_tokens=int(both[~paid].sum()),
        generated_tokens=int(of_output.sum() - of_output[places].sum()),
    )


def added_up(found: Sequence[Sequence[Answered]]) -> list[Answered]:
    """The answers to each step, of all ranges."""
    return [sum(of_step, Answered()) for of_step in zip(*(one for one in found if one), strict=True)]


def with_earlier(totals: Totals, found: Sequence[Answered]) -> Totals:
    """The tokens of all steps; those of the last one are in `totals` already."""
    earlier = sum(found[:-1], Answered())
    reasoning = (totals.reasoning_tokens or 0) + earlier.reasoning_tokens
    return replace(
        totals,
        input_tokens=totals.input_tokens + earlier.input_tokens,
        cached_tokens=totals.cached_tokens + earlier.cached_tokens,
        output_tokens=totals.output_tokens + earlier.output_tokens,
        reasoning_tokens=reasoning or totals.reasoning_tokens,
    )


def step_counts(
    spec: BatchInferenceSpec,
    found: Sequence[Answered],
    rows: int,
    failed: Mapping[str, int],
) -> list[StepCounts] | None:
    """What became of each step.

    :param spec: of the last step.
    :param rows: of the input.
    :param failed: how many rows failed, by step and what it did, such as ``judge.parse``.
    """
    if not found:
        return None
    errors: Counter[str] = Counter()
    for name, count in failed.items():
        errors[name.partition(".")[0]] += count
    made, left = [], rows
    for name, one in zip([*spec.question.earlier, spec.step_name], found, strict=True):
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
                resumed=one.resumed,
                reused=one.reused,
                duplicates=one.duplicates,
                tokens_saved=one.saved_tokens,
            )
        )
        left -= errors[name]  # which no later step asks
    return made
