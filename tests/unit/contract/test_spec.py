# SPDX-License-Identifier: Apache-2.0
"""A spec is plain, frozen data, with values derived from its fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error, submitted


def test_a_spec_survives_its_way_through_json() -> None:
    whole = submitted(
        sampling={
            "temperature": 0,
            "structured_outputs": {"json": {"anyOf": [{"type": "null"}, {"minimum": 1}]}},
        },
        messages=[{"role": "user", "content": "{row.a}"}],
        deadline=1.5,
    )
    assert parse(BatchInferenceSpec, whole.model_dump_json()) == whole


def test_specs_are_frozen() -> None:
    whole = spec()
    with pytest.raises(ValidationError):
        whole.preserve_order = True  # type: ignore[misc]  # that it is read-only is the point


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, False),
        ({"response_format": "json_object"}, True),
        ({"response_format": "text"}, False),
        ({"sampling": {"structured_outputs": {"json": {"type": "object"}}}}, True),
        ({"sampling": {"structured_outputs": {"json_object": True}}}, True),
        ({"sampling": {"structured_outputs": {"choice": ["a"]}}}, False),
    ],
)
def test_json_is_checked_where_it_was_asked_for(fields: dict[str, Any], needs: bool) -> None:
    assert spec(**fields).needs_json is needs


def test_what_has_no_effect_on_prompts_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_gpus_of_a_replica() -> None:
    engine = {"engine": "vllm", "engine_args": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}}
    assert spec(**engine).gpus_per_replica == 8
    engine["engine_args"]["prefill_context_parallel_size"] = 2
    assert spec(**engine).gpus_per_replica == 16
    assert spec().gpus_per_replica == 1
