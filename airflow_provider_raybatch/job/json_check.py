# SPDX-License-Identifier: Apache-2.0
"""Whether a response that should be JSON is JSON: no grammar keeps one whole that `max_tokens` cuts off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Response
from airflow_provider_raybatch.job.request import RowFailure


def checked(
    response: Response, spec: BatchInferenceSpec, row_sampling: Mapping[str, Any]
) -> Response | RowFailure:
    """The response, or the failure of its row where JSON was asked for and a completion is none.

    :param row_sampling: what the row asked besides the job's sampling.
    """
    if not _asked(spec, row_sampling):
        return response
    for completion in response.completions:
        try:
            json.loads(completion.text)
        except ValueError as error:
            cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
            return RowFailure("parse", f"the response is no JSON{cut} ({error}): {completion.text[:200]!r}")
    return response


def _asked(spec: BatchInferenceSpec, row_sampling: Mapping[str, Any]) -> bool:
    if spec.response_format.json_object or not row_sampling:
        return spec.needs_json
    structured = {**spec.sampling, **row_sampling}.get("structured_outputs")
    return isinstance(structured, Mapping) and bool(structured.get("json") or structured.get("json_object"))
