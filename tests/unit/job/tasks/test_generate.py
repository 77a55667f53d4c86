# SPDX-License-Identifier: Apache-2.0
"""The output of text generation depends on the spec alone; some jobs have optional columns, as reasoning."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.job.tasks.generate import Generate
from tests.support.specs import spec

REASONS: dict[str, Any] = {"engine_args": {"reasoning_parser": "x"}}


def thought(text: str, tokens: int) -> Completion:
    return Completion(text, "stop", 4, extra={"reasoning": "hm", "reasoning_tokens": tokens})


ONE = Response((thought("abc", 3),), 5, truncated_prompt_tokens=2)
TWO = Response((thought("d", 1), thought("ef", 2)), 6)


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


def test_optional_columns_follow_the_others_in_one_order() -> None:
    task = Generate(spec(**REASONS, on_overlong="truncate"))
    assert task.output_type.names[5:] == ["truncated_prompt_tokens", "reasoning", "reasoning_tokens"]
    (row,) = task.outputs([ONE]).to_pylist()
    assert (row["response"], row["truncated_prompt_tokens"], row["reasoning_tokens"]) == ("abc", 2, 3)


def test_each_completion_has_the_columns_of_completions() -> None:
    """Failed rows between others have no output."""
    task = Generate(spec(**REASONS, sampling={"n": 2}))
    made = task.outputs([None, TWO, None, ONE])
    assert made.type == task.output_type
    tokens = [
        row and (row["reasoning_tokens"], [one["reasoning_tokens"] for one in row["completions"]])
        for row in made.to_pylist()
    ]
    assert tokens == [None, (1, [1, 2]), None, (3, [3])]


def test_a_store_keeps_columns_of_one_completion_once() -> None:
    """Another job that may have several completions makes the list of them."""
    one, several = Generate(spec(**REASONS)), Generate(spec(**REASONS, sampling_column="s"))
    assert "completions" not in one.stored_type.names
    stored = one.adapted(one.outputs([ONE]), one.stored_type)
    (row,) = several.adapted(stored, several.output_type).to_pylist()
    own = {"reasoning": "hm", "reasoning_tokens": 3}
    assert row["completions"] == [{"text": "abc", "finish_reason": "stop", "output_tokens": 4, **own}]


def test_outputs_without_an_optional_column_get_nulls() -> None:
    """No response of such a job is found for one that needs the column: request keys differ."""
    found = Generate(spec(sampling={"n": 2})).outputs([TWO])
    task = Generate(spec(**REASONS, sampling={"n": 2}))
    (row,) = task.adapted(found, task.output_type).to_pylist()
    assert (row["reasoning"], [one["reasoning"] for one in row["completions"]]) == (None, [None, None])
