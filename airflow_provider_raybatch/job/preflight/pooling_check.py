# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM check a pooling task and its parameters before an engine starts."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_pooling
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.job.preflight.model_look import GENERATES, wrong_task


def check_pooling(spec: BatchInferenceSpec, config: Any) -> None:
    """Check what a model's config tells; its files have told most before, and its engine tells the rest.

    :raises PreflightError: the model generates, or vLLM refuses `pooling` for it.
    """
    problem = wrong_task(spec.model_task, GENERATES) if vllm_compat.generates(config) else None
    if problem is not None:
        raise PreflightError(f"model: {spec.model!r} {problem}.")
    labels = vllm_compat_pooling.label_count(config)
    if spec.compares and labels not in (1, None):
        raise PreflightError(
            f"model: {spec.model!r} has {labels} labels, and model_task 'score' needs a cross-encoder "
            "(reranker), which has one; use model_task 'classify' with a template of both texts."
        )
    try:
        params = vllm_compat_pooling.pooling_params(spec.model_task, spec.pooling)
        vllm_compat_pooling.check_pooling_params(params, config)
    except Exception as error:  # its class differs between vLLM's versions
        raise PreflightError(f"pooling: vLLM refuses {spec.pooling!r}: {short(error)}.") from error
