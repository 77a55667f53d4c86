# SPDX-License-Identifier: Apache-2.0
"""What vLLM would refuse row after row is one sentence before an engine starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.sampling_check import check_sampling, check_token_ids
from tests.support.specs import spec

IGNORING_CASE = {"structured_outputs": {"regex": "(?i)yes|no"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "backend", "begins"),
    [
        (IGNORING_CASE, None, None),
        (IGNORING_CASE, "guidance", None),
        (IGNORING_CASE, "xgrammar", 'sampling: structured_outputs {"regex": "(?i)yes|no"} does not compile'),
        ({"min_tokens": 20}, None, None),
        ({"min_tokens": 20, "max_tokens": 10}, None, "sampling: vLLM refuses"),
        ({"structured_outputs": {"choice": []}}, None, "sampling: "),
    ],
)
def test_sampling_of_the_job(sampling: dict[str, Any], backend: str | None, begins: str | None) -> None:
    pytest.importorskip("vllm")
    args = {} if backend is None else {"structured_outputs_config": {"backend": backend}}
    job = spec(engine="vllm", model="some/model", sampling=sampling, engine_args=args)
    if begins is None:
        check_sampling(job)
    else:
        with pytest.raises(PreflightError) as caught:
            check_sampling(job)
        assert str(caught.value).startswith(begins)


@pytest.mark.parametrize(
    ("sampling", "unknown"),
    [
        ({"logit_bias": {0: 1, 99: 1}, "stop_token_ids": [7], "temperature": 0}, None),
        ({"logit_bias": {7: 1, 100: 1}}, "logit_bias has the token id 100"),
        ({"allowed_token_ids": [3, -1]}, "allowed_token_ids has the token id -1"),
        ({"stop_token_ids": None}, None),
    ],
)
def test_ids_of_tokens_that_the_model_lacks(sampling: dict[str, Any], unknown: str | None) -> None:
    if unknown is None:
        check_token_ids(SimpleNamespace(**sampling), 100)
    else:
        with pytest.raises(PreflightError) as caught:
            check_token_ids(SimpleNamespace(**sampling), 100)
        assert str(caught.value) == f"sampling: {unknown}, and the model has ids from 0 to 99."
