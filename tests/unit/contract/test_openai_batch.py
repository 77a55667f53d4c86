# SPDX-License-Identifier: Apache-2.0
"""Arguments that go with OpenAI batch files, and those that don't."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.specs import spec, spec_error

LINES: dict[str, Any] = {"format": "openai_batch", "prompt": None}


def test_lines_are_named_by_their_custom_id() -> None:
    built = spec(**LINES)
    assert (built.id_column, built.asks_by_lines, built.answers_lines) == ("custom_id", True, False)
    assert spec(**LINES, id_column="custom_id", destination_format="openai_batch").answers_lines
    assert spec().id_column is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", "Say {row.body}"),
        ("messages_column", "body"),
        ("prompt_column", "body"),
        ("prompt_function", "m:f"),
        ("system_prompt", "Be short."),
        ("sampling_column", "body"),
        ("adapter_column", "url"),
        ("on_overlong", "truncate"),
        ("id_column", "body"),
        ("response_format", "json_object"),
        ("served_model_name", ""),
    ],
)
def test_arguments_of_rows_have_no_place_beside_lines(name: str, value: str) -> None:
    extra = {"adapters": {"a": "/a"}} if name == "adapter_column" else {}
    shown = "messages" if name == "messages_column" else name
    assert spec_error(**{**LINES, **extra, name: value}).startswith(f"{shown}: ")


def test_answers_need_lines() -> None:
    assert "set format='openai_batch'" in spec_error(destination_format="openai_batch")
    assert spec_error(served_model_name="x").startswith("served_model_name: ")
    both = {**LINES, "destination_format": "openai_batch"}
    assert spec_error(**both, postprocess="m:f").startswith("postprocess: ")
    assert spec(**LINES, postprocess="m:f").postprocess == "m:f"
    assert spec_error(**LINES, engine="ray_data_llm").startswith("format: it has no effect with engine 'ray")


def test_lines_get_one_vector_which_may_be_of_a_cut_text() -> None:
    built = spec(**LINES, model_task="embed", on_overlong="truncate")
    assert (built.keeps_logprobs, built.samples_by_row) == (False, True)
    assert spec_error(**LINES, model_task="embed", chunk_tokens=5).startswith("chunk_tokens: ")


def test_lines_may_ask_for_log_probabilities() -> None:
    built = spec(**LINES)
    assert built.optional_columns == ["logprobs", "mean_logprob"]
    both = spec(**LINES, sampling={"prompt_logprobs": 1})
    assert both.optional_columns == [
        "prompt_logprobs", "prompt_mean_logprob", "logprobs", "mean_logprob"
    ]  # fmt: skip


def test_the_document_keeps_its_meaning() -> None:
    built = spec(**LINES, served_model_name="gpt-4o-mini", destination_format="openai_batch")
    again = BatchInferenceSpec.model_validate_json(built.model_dump_json())
    assert (again, again.fingerprint) == (built, built.fingerprint)
    assert spec(**LINES).response_digest == spec(**LINES, served_model_name="x").response_digest


def test_served_batch_is_answered_by_lines() -> None:
    served = {"folder": "/batches/one", "expires_at": 4e9}
    assert spec(**LINES, destination_format="openai_batch", served_batch=served).served_batch is not None
    said = spec_error(**LINES, destination_format="jsonl", served_batch=served)
    assert "served_batch" in said
    assert "'jsonl'" in said
