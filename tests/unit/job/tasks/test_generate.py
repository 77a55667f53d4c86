# SPDX-License-Identifier: Apache-2.0
"""The output of text generation depends on the spec alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.publishing import response
from tests.support.specs import spec

CHOICES = {"max_tokens": 3, "structured_outputs": {"choice": ["positive", "negative"]}}


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [
        ({}, False),
        ({"sampling": {"n": 1}}, False),
        ({"sampling": {"n": 3}}, True),
        ({"sampling_column": "s"}, True),
        ({"prompt_function": "m:f"}, True),
    ],
)
def test_all_completions_are_kept_where_there_may_be_several(fields: dict[str, Any], keeps: bool) -> None:
    assert Generate(spec(**fields)).keeps_completions is keeps


def test_output_columns_are_named_before_anything_runs() -> None:
    names = Generate(spec(destination="/out", output_prefix="llm_")).names
    assert list(names.values()) == [
        "llm_response",
        "llm_finish_reason",
        "llm_input_tokens",
        "llm_cached_tokens",
        "llm_output_tokens",
    ]
    names = Generate(spec(sampling={"n": 2}, reuse="/store")).names
    assert list(names)[-2:] == ["completions", "reused_from"]


@pytest.mark.parametrize(
    ("fields", "reusable"),
    [
        ({}, [True, False, True, False]),
        ({"sampling": {**CHOICES, "max_tokens": 5}}, [True] * 4),
        ({"sampling": {"structured_outputs": {"choice": ["positive"]}}}, [True] * 4),
        ({"sampling": {**CHOICES, "ignore_eos": True}}, [True] * 4),
        ({"sampling": {**CHOICES, "structured_outputs": {"regex": "positive"}}}, [True] * 4),
    ],
)
def test_a_stored_choice_that_max_tokens_cut_off_is_not_reused(
    fields: dict[str, Any], reusable: list[bool]
) -> None:
    """What the context cut off, or a user wanted to be, would be cut off again."""
    task = Generate(spec(**{"sampling": CHOICES, **fields}))
    responses = [
        response("positive"),
        response("very posi tive", reason="length"),
        response("very posi", reason="length"),
        response("a b c d", "very posi tive", reason="length"),
    ]
    stored = pa.array([task.output(one) for one in responses], task.stored_type)
    assert task.reusable(stored).to_pylist() == reusable


def test_unknown_kinds_of_tasks_are_refused() -> None:
    with pytest.raises(SpecError, match=r"^model_task: 'sing' is not a kind of task; use 'generate'\.$"):
        task_of(spec(model_task="sing"))
