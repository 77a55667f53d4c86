# SPDX-License-Identifier: Apache-2.0
"""Whether a response is the JSON that was asked for, and whole where it must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.sampling import asks_json
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.request.json_schema import misfit
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure

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
    schemas = [] if structured is None else [structured]
    if spec.response_schema is not None and (structured or {}).get("json") != spec.response_schema:
        schemas.append({"json": spec.response_schema})  # a row's own sampling asked for something else
    if spec.engine == "echo" and structured is not None:
        # It knows simple schemas, and stands for a model that knows the one that was asked for.
        schemas = schemas[1:]
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
