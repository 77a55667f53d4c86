# SPDX-License-Identifier: Apache-2.0
"""Whether a response is the JSON that was asked for, and whole where it must be.

Of one of several steps, rejected ones may go on, and the best come first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.arguments.sampling import asks_json
from airflow_provider_raybatch.contract.arguments.steps import (
    CANDIDATE_COLUMN,
    REJECTED_COLUMN,
    StepArguments,
)
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.request.json_schema import misfit
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.typed_columns import values_of

Check = Callable[[Response, Mapping[str, Any]], "str | None"]
PARSE = "parse"
"""The step of a response that is not what was asked for."""
LENGTH = "length"
"""That of a response that was cut off, where that is an error."""
_BROKEN = frozenset({"error", "abort"})
"""Finish reasons of requests that vLLM gave up; their text is incomplete."""
_OTHER_BACKEND = (
    "; an engine has one backend for structured_outputs, which can't take those of this row: try "
    "engine_args={'structured_outputs_config': {'backend': 'guidance'}}"
)
_BLANKS = 16
"""Characters of white space at the end of a cut response that can't be indentation."""
_COMPACT = (
    "; it ends in white space, which the grammar allows between values without end: ask for compact JSON "
    "with engine_args={'structured_outputs_config': {'backend': 'xgrammar', 'disable_any_whitespace': True}}"
)


def checked(
    response: Response,
    spec: BatchInferenceSpec,
    row_sampling: Mapping[str, Any],
    of_columns: Check = lambda *_: None,
) -> Response | RowFailure:
    """The response, or the failure of its row: it was given up, cut off, or is not the JSON asked for.

    :param row_sampling: the row's own sampling parameters.
    :param of_columns: see :meth:`~airflow_provider_raybatch.job.tasks.optional_columns.groups.Groups.check`.
    """
    broken = [one.finish_reason for one in response.completions if one.finish_reason in _BROKEN]
    sampling = {**spec.sampling, **row_sampling} if row_sampling else spec.sampling
    if broken:
        reason = f"the engine ended the request with finish_reason {broken[0]!r}"
        return _failed(
            "engine", reason + (_OTHER_BACKEND if sampling.get("structured_outputs") else ""), response
        )
    if spec.on_truncated == "error" and any(one.finish_reason == "length" for one in response.completions):
        tokens = max(completion.output_tokens for completion in response.completions)
        cut = f"the response was cut off after {count_of(tokens, 'token')}"
        return _failed(LENGTH, f"{cut}; raise sampling.max_tokens or the context", response)
    if (misfitting := of_columns(response, sampling)) is not None:
        return _failed(PARSE, misfitting, response)
    structured = sampling["structured_outputs"] if asks_json(sampling) else None
    if structured is None and spec.response_format == "text":
        return response
    schemas = _schemas(spec, structured)
    for completion in response.completions:
        try:
            value = json.loads(completion.text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            return _failed(PARSE, _no_json(completion, error, structured is not None), response)
        why = next(filter(None, (misfit(value, one) for one in schemas)), "")
        if why:
            reason = f"the response does not fit the JSON schema ({why}): {completion.text[:200]!r}"
            return _failed(PARSE, reason, response)
    return response


def _schemas(spec: BatchInferenceSpec, structured: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What a response must fit: the row's own constraint, and the job's schema.

    :param structured: ``structured_outputs`` of the row's sampling parameters, where they ask for JSON.
    """
    schemas = [] if structured is None else [structured]
    if spec.response_schema is not None and (structured or {}).get("json") != spec.response_schema:
        schemas.append({"json": spec.response_schema})  # a row's own sampling asked for something else
    if spec.engine == "echo" and structured is not None:
        # It knows simple schemas, and stands for a model that knows the one that was asked for.
        return schemas[1:]
    return schemas


def _no_json(completion: Completion, error: Exception, has_grammar: bool) -> str:
    text, cut, remedy = completion.text, "", ""
    if completion.finish_reason == "length":
        cut = ", cut off by max_tokens"
        between_values = not str(error).startswith("Unterminated string")
        if has_grammar and between_values and len(text) - len(text.rstrip()) >= _BLANKS:
            remedy = _COMPACT
    return f"the response is not JSON{cut} ({error}): {text[:200]!r}{remedy}"


def _refuse(constant: str) -> None:
    # Python's parser takes these; RFC 8259, and other parsers that may read the dataset, don't.
    raise ValueError(f"{constant} is not a JSON value")


def _failed(step: str, reason: str, response: Response) -> RowFailure:
    return RowFailure(step, reason, response.input_tokens, response.output_tokens)


def checked_in_step(
    response: Response,
    step: StepArguments,
    kinds: Mapping[str, Kind],
    check: Callable[[Response], Response | RowFailure],
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
