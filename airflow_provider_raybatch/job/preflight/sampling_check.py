# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM takes the job's sampling, before an engine starts. Rows' own fail them later, alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.failures.diagnosis import short


def check_sampling(spec: BatchInferenceSpec) -> Any:
    """Let vLLM make the job's parameters, and compile what its responses are constrained to.

    :returns: vLLM's parameters.
    :raises PreflightError: it refuses them.
    """
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    try:
        params = sampling_params({"max_tokens": None, **spec.sampling})
    except ValueError as error:
        raise PreflightError(f"sampling: vLLM refuses {spec.sampling!r}: {short(error)}.") from error
    structured = getattr(params, "structured_outputs", None)
    if structured is None:
        return params
    if structured.choice is not None and not structured.choice:
        raise PreflightError("sampling: structured_outputs has an empty list of choices; give at least one.")
    try:
        vllm_compat.compile_structured(params, _grammar_backend(spec))
    except Exception as error:  # the grammar libraries raise classes of their own
        shown = json.dumps(spec.sampling["structured_outputs"], ensure_ascii=False, default=str)[:200]
        raise PreflightError(
            f"sampling: structured_outputs {shown} does not compile: {short(error)}."
        ) from error
    return params


def _grammar_backend(spec: BatchInferenceSpec) -> str:
    given = spec.engine_args.get("structured_outputs_config")
    return str(given.get("backend") or "auto") if isinstance(given, Mapping) else "auto"
