# SPDX-License-Identifier: Apache-2.0
"""What becomes of the response to one of several steps: rejected ones may go on, and the best come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.arguments.steps import (
    CANDIDATE_COLUMN,
    REJECTED_COLUMN,
    StepArguments,
)
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.response_check import LENGTH, PARSE
from airflow_provider_raybatch.job.tasks.typed_columns import values_of

Check = Callable[[Response], "Response | RowFailure"]


def checked_in_step(
    response: Response, step: StepArguments, kinds: Mapping[str, Kind], check: Check
) -> Response | RowFailure:
    """The response, with its completions in order, or the failure of its row.

    Of several completions it is enough that one is good: those that are not come last, and say why. Of good
    ones, those come first that `best` ranks higher; all others keep their order. One that the engine gave up
    fails the row, since asking again may give it.

    :param kinds: of the typed columns.
    :param check: of a response with one completion.
    """
    if len(response.completions) < 2 and step.each is None:
        made = check(response)
        if isinstance(made, RowFailure) and _goes_on(step, made):
            return replace(response, extra={**response.extra, REJECTED_COLUMN: made.reason})
        return made
    good: list[tuple[float, Completion]] = []
    bad: list[Completion] = []
    failures: list[RowFailure] = []
    for place, completion in enumerate(response.completions):
        made = check(replace(response, completions=(completion,)))
        extra = {**completion.extra, CANDIDATE_COLUMN: place}
        if isinstance(made, RowFailure):
            if made.step not in (PARSE, LENGTH):
                return _of_all(made, response)
            failures.append(made)
            bad.append(replace(completion, extra={**extra, REJECTED_COLUMN: made.reason}))
        else:
            rank = 0.0 if step.best is None else _rank(completion.text, step.best, kinds)
            good.append((rank, replace(completion, extra=extra)))
    if not good and not step.goes_on_rejected:
        return _of_all(failures[0], response)
    good.sort(key=lambda one: -one[0])
    return replace(response, completions=(*(completion for _, completion in good), *bad))


def _of_all(failure: RowFailure, response: Response) -> RowFailure:
    """A failure with the tokens of all completions."""
    return replace(failure, input_tokens=response.input_tokens, output_tokens=response.output_tokens)


def _goes_on(step: StepArguments, failure: RowFailure) -> bool:
    """Whether a row goes on with this failure; without a text there is nothing to go on with."""
    return step.goes_on_rejected and failure.step in (PARSE, LENGTH)


def _rank(text: str, best: str, kinds: Mapping[str, Kind]) -> float:
    """How good a completion is by the answer about it; one that says nothing comes last."""
    value: Any = values_of(text, kinds)[best]
    return float("-inf") if value is None else float(value)
