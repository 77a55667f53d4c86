# SPDX-License-Identifier: Apache-2.0
"""The output of text generation depends on the spec alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.tasks.generate import Generate
from tests.support.specs import spec


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


def test_bytes_are_left_out_without_keep_images() -> None:
    inputs = pa.table({
        "id": [1],
        "photo": [b"content"],
        "pages": [[{"bytes": b"content", "path": "a.png"}]],
        "other": [b"content"],
        "uri": ["s3://b/a.png"],
    })
    images = ["photo", "pages", "uri"]
    assert Generate(spec(images=images)).stored_inputs(inputs).column_names == ["id", "other", "uri"]
    assert Generate(spec(images=images, keep_images=True)).stored_inputs(inputs) == inputs
    assert Generate(spec()).stored_inputs(inputs) == inputs
    named = Generate(spec(images=images, id_column="photo"))
    assert named.stored_inputs(inputs).column_names == ["id", "photo", "other", "uri"]
