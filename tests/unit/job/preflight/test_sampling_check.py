# SPDX-License-Identifier: Apache-2.0
"""What vLLM would refuse row after row is one sentence before an engine starts."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.sampling_check import check_sampling
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
