# SPDX-License-Identifier: Apache-2.0
"""Whether a response is what was asked for: JSON where it should be, and whole where it must be.

No grammar keeps a response whole that `max_tokens` cuts off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Response, RowFailure

_BROKEN = frozenset({"error", "abort"})
"""Finish reasons of requests that vLLM gave up: their text is empty, or a part of a response."""
_OTHER_BACKEND = (
    "; an engine has one backend for structured_outputs, which can't take those of this row: try "
    "engine_args={'structured_outputs_config': {'backend': 'guidance'}}"
)


def checked(
    response: Response, spec: BatchInferenceSpec, row_sampling: Mapping[str, Any]
) -> Response | RowFailure:
    """The response, or the failure of its row: a completion was given up, is not JSON, or is cut off.

    :param row_sampling: what the row asked besides the job's sampling.
    """
    broken = [one.finish_reason for one in response.completions if one.finish_reason in _BROKEN]
    if broken:
        remedy = _OTHER_BACKEND if {**spec.sampling, **row_sampling}.get("structured_outputs") else ""
        return _failed(
            "engine", f"the engine ended the request with finish_reason {broken[0]!r}{remedy}", response
        )
    cut_off = any(completion.finish_reason == "length" for completion in response.completions)
    if cut_off and spec.on_truncated == "error":
        tokens = max(completion.output_tokens for completion in response.completions)
        reason = f"the response was cut off after {tokens} tokens; raise sampling.max_tokens or the context"
        return _failed("length", reason, response)
    if not _asked(spec, row_sampling):
        return response
    for completion in response.completions:
        try:
            json.loads(completion.text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
            reason = f"the response is not JSON{cut} ({error}): {completion.text[:200]!r}"
            return _failed("parse", reason, response)
    return response


def _refuse(constant: str) -> None:
    # Python's parser takes these; RFC 8259, and other parsers that may read the dataset, don't.
    raise ValueError(f"{constant} is not a JSON value")


def _failed(step: str, reason: str, response: Response) -> RowFailure:
    return RowFailure(step, reason, response.input_tokens, response.output_tokens)


def _asked(spec: BatchInferenceSpec, row_sampling: Mapping[str, Any]) -> bool:
    if spec.response_format == "json_object" or not row_sampling:
        return spec.needs_json
    structured = {**spec.sampling, **row_sampling}.get("structured_outputs")
    return isinstance(structured, Mapping) and bool(structured.get("json") or structured.get("json_object"))
