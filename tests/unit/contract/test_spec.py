# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider_raybatch.contract.arguments.input import InputArguments
from airflow_provider_raybatch.contract.arguments.output import OutputArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.specs import TASK, document, spec, submitted

REASONING = (
    "engine_args: reasoning_parser 'qwen3' lets the model reason before its answer, and the dataset has no "
    "column for reasoning, so no response would be JSON or structured; remove it, and switch reasoning off "
    "where the model can (chat_template_kwargs={'enable_thinking': False})."
)


def error_of(**fields: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec(**fields)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sorce": 1}, "sorce: there is no such field; remove it or correct its spelling."),
        (
            {"engine": "echo", "tensor_parallel_size": 2},
            "tensor_parallel_size: there is no such field; remove it or correct its spelling.",
        ),
        ({"model": None}, "model: it must be text, but it is None."),
        (
            {"sampling": {"n": 0}},
            "sampling: n: the number of completions must be a whole number of at least 1, but it is 0.",
        ),
        (
            {"sampling": {"logprobs": 1}},
            "sampling: logprobs: the dataset has no column for log probabilities; remove it.",
        ),
        (
            {"sampling": {"prompt_logprobs": 0}},
            "sampling: prompt_logprobs: the dataset has no column for log probabilities; remove it.",
        ),
        (
            {"sampling": {"temperature": float("nan")}},
            "sampling: temperature: nan is not finite; give a finite number.",
        ),
        (
            {"sampling": {"logit_bias": {"5": float("-inf")}}},
            "sampling: logit_bias: {'5': -inf} is not finite; give a finite number.",
        ),
        (
            {
                "engine": "vllm",
                "engine_args": {"reasoning_parser": "qwen3"},
                "response_format": "json_object",
            },
            REASONING,
        ),
        (
            {
                "engine": "vllm",
                "engine_args": {"structured_outputs_config": {"reasoning_parser": "qwen3"}},
                "sampling": {"structured_outputs": {"choice": ["a"]}},
            },
            REASONING,
        ),
        (
            {"sampling": {"n": True}},
            "sampling: n: the number of completions must be a whole number of at least 1, but it is True.",
        ),
        (
            {"source": ["gs://bucket/x"]},
            "source: 'gs://bucket/x' has the scheme 'gs'; use a local path or one of file://, s3://, "
            "https://, http://.",
        ),
        (
            {"source": ["S3://bucket/x"]},
            "source: 'S3://bucket/x' has the scheme 'S3'; write 's3://bucket/x'.",
        ),
        (
            {"source": ["/in/{{ ds }}/"]},
            "source: '/in/{{ ds }}/' still has a Jinja expression; the field was not rendered.",
        ),
        (
            {"source": [" "]},
            "source: a path is empty; name a file, a folder or a glob.",
        ),
        (
            {"source": ["s3:///key"]},
            "source: 's3:///key' names no bucket; write it as s3://bucket/key.",
        ),
        (
            {"source": ["s3://data-*/x.csv"]},
            "source: 's3://data-*/x.csv' has a wildcard in its bucket; name one bucket.",
        ),
        (
            {"destination": "https://host/out"},
            "destination: 'https://host/out' has the scheme 'https'; use a local path or one of file://, "
            "s3://.",
        ),
        (
            {"destination": "/out/*"},
            "destination: '/out/*' has a wildcard; name one folder.",
        ),
        (
            {"prompt_function": "not a path"},
            "prompt_function: 'not a path' is not an import path; write it as 'package.module:function'.",
        ),
        (
            {"prompt": ""},
            "prompt: string should have at least 1 character, but it is ''.",
        ),
        (
            {"engine": "vllm", "processor": {"a": 1}},
            "processor: only engine 'ray_data_llm' takes it, not 'vllm'; put vLLM's arguments into "
            "engine_args.",
        ),
        (
            {"max_error_fraction": 1.5},
            "max_error_fraction: it must be at most 1, but it is 1.5.",
        ),
        (
            {"source": []},
            "source: list should have at least 1 item after validation, not 0, but it is [].",
        ),
        (
            {"engine": "sglang"},
            "engine: it must be 'vllm', 'ray_data_llm' or 'echo', but it is 'sglang'.",
        ),
        (
            {"schema_version": 1, "limits": {}, "destination": {"uri": "/out"}},
            "schema_version: the job was submitted with a spec of version 1, but this provider reads "
            "version 2; clear the task, so that it is submitted again.",
        ),
    ],
)
def test_an_error_is_one_sentence_with_field_value_and_remedy(fields: dict[str, Any], sentence: str) -> None:
    assert error_of(**fields) == sentence


NO_COLUMN = "names no column, so each row would pay for the same request; "


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (
            {"prompt": "T {subject}"},
            f"prompt: 'T {{subject}}' {NO_COLUMN}write {{subject}} as {{row.subject}} if it is a column.",
        ),
        (
            {"prompt": "T", "system_prompt": '{"a": 1} {row}'},
            f"prompt: 'T' {NO_COLUMN}name one as {{row.name}}, or set n in sampling for several answers to "
            "one request.",
        ),
        (
            {"messages": [{"role": "user", "content": "T {{ row.x }}"}]},
            "messages: '{{ row.x }}' has double braces, which are Airflow's; write '{row.x}'.",
        ),
        (
            {"prompt": "{row.a} {{ row['b c'] }}"},
            "prompt: \"{{ row['b c'] }}\" has double braces, which are Airflow's; write \"{row['b c']}\".",
        ),
    ],
)
def test_a_request_that_no_row_changes_is_refused(prompt: dict[str, Any], told: str) -> None:
    assert error_of(**prompt) == told


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "T", "system_prompt": "{row.a}"},
        {"prompt_function": "m:f"},
        {"prompt": "T", "sampling_column": "s"},
        {"messages_column": "c", "system_prompt": "T"},
    ],
)
def test_one_part_that_the_row_changes_is_enough(fields: dict[str, Any]) -> None:
    assert spec(**fields)


def test_the_number_of_further_errors_is_told() -> None:
    assert error_of(sampling={"n": 0}, sorce=1).endswith(" (and 1 more).")


def test_long_values_are_cut() -> None:
    assert len(error_of(engine="x" * 5000)) < 300


def test_broken_json_is_an_error_of_the_spec() -> None:
    with pytest.raises(SpecError, match="BatchInferenceSpec: invalid JSON"):
        parse(BatchInferenceSpec, b"{")


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("/data/x", "/data/x"),
        ("/data/x/", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("/data/y/../x", "/data/x/"),
        ("s3://bucket/x/", "s3://bucket/x"),
    ],
)
def test_source_and_destination_differ_however_they_are_written(source: str, destination: str) -> None:
    sentence = error_of(source=["/other.csv", source], destination=destination)
    assert "is also the source; choose another folder" in sentence


@pytest.mark.parametrize(
    ("source", "destination"),
    [("/data", "/data/out"), ("s3://bucket", "s3://bucket/out"), ("/data/**/*.csv", "/data/out")],
)
def test_a_destination_inside_the_source_would_be_read_by_the_next_run(source: str, destination: str) -> None:
    sentence = error_of(source=[source], destination=destination)
    assert sentence == (
        f"destination: {destination!r} lies inside the source {source!r}, so the next run would read its own "
        "output; choose a folder outside."
    )


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("/data/in", "/data/in2"),
        ("/data/in/x.csv", "/data/in/out"),
        ("/data/in/*.csv", "/data/in/out"),
        ("s3://bucket/a", "s3://other/a"),
        ("/data/out/day1", "/data/out"),
    ],
)
def test_neighbours_are_no_conflict(source: str, destination: str) -> None:
    assert spec(source=[source], destination=destination).destination == destination


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("/data/out/", "reuse: '/data/out' is also the destination; choose another folder."),
        ("/data/in.jsonl", "reuse: '/data/in.jsonl' is also the source; choose another folder."),
        ("/data/out/store", "and the destination '/data/out' lie one inside the other"),
        ("file:///data", "and the destination '/data/out' lie one inside the other"),
        ("/lake/in/store", "and the source '/lake/in' lie one inside the other"),
        ("/lake/deep/store", "and the source '/lake/deep/**/*.csv' lie one inside the other"),
        ("/lake/flat", "and the source '/lake/flat/*.csv' lie one inside the other"),
    ],
)
def test_a_response_store_lies_apart(store: str, sentence: str) -> None:
    paths = ["/data/in.jsonl", "/lake/in", "/lake/deep/**/*.csv", "/lake/flat/*.csv"]
    assert sentence in error_of(source=paths, reuse=store)


def test_a_response_store_may_lie_beside() -> None:
    for store in ("/data/store", "/data/output", "s3://data/out"):
        assert spec(reuse=store).reuse == store


@pytest.mark.parametrize(
    ("uri", "kept"),
    [("/out/", "/out"), ("/", "/"), ("s3://bucket/", "s3://bucket"), ("file:///out//", "file:///out")],
)
def test_trailing_slashes_of_the_destination_go(uri: str, kept: str) -> None:
    assert parse(OutputArguments, {"destination": uri}).destination == kept


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


class TestFingerprint:
    def test_who_runs_it_and_its_limits_are_no_part(self) -> None:
        one = submitted(0, deadline=1.0)
        other = submitted(1, token="other", max_error_fraction=0.5)
        assert one.fingerprint == other.fingerprint == spec().fingerprint

    @pytest.mark.parametrize(
        "fields",
        [
            {"source": ["/data/other.jsonl"]},
            {"prompt": "Say: {row.text}"},
            {"model": "other"},
            {"sampling": {"temperature": 0}},
            {"engine": "echo", "replicas": 2},
            {"destination": "/data/out", "destination_format": "jsonl"},
            {"preserve_order": True},
        ],
    )
    def test_everything_that_changes_the_dataset_is_part(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).fingerprint != spec().fingerprint

    def test_the_order_of_keys_does_not_matter(self) -> None:
        one, other = {"temperature": 0, "n": 2}, {"n": 2, "temperature": 0}
        assert spec(sampling=one).fingerprint == spec(sampling=other).fingerprint


class TestResponseDigest:
    @pytest.mark.parametrize(
        "fields",
        [
            {"source": ["/data/other.jsonl"]},
            {"destination": "/elsewhere", "destination_format": "jsonl"},
            {"engine": "echo", "replicas": 4, "batch_size": 7, "num_cpus": 2},
            {"engine": "echo", "engine_args": {"max_num_seqs": 4, "startup_seconds": 3}},
            {"preserve_order": True},
        ],
    )
    def test_what_only_changes_how_it_runs_keeps_the_finished_rows(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).response_digest == spec().response_digest

    @pytest.mark.parametrize(
        "fields",
        [
            {"prompt": "Say: {row.text}"},
            {"model": "other"},
            {"sampling": {"seed": 1}},
            {"sampling_column": "s"},
            {"response_format": "json_object"},
            {"engine": "vllm", "engine_args": {}},
            {"engine": "echo", "engine_args": {"quantization": "fp8"}},
        ],
    )
    def test_what_changes_a_response_makes_all_rows_new(self, fields: dict[str, Any]) -> None:
        assert spec(**fields).response_digest != spec().response_digest


class TestTaskKey:
    def test_the_digest_tells_tasks_apart(self) -> None:
        key = TaskKey(**TASK)
        others = [
            TaskKey(**{**TASK, field: value})
            for field, value in [
                ("namespace", "b"),
                ("dag_id", "b"),
                ("run_id", "b"),
                ("task_id", "b"),
                ("map_index", 0),
            ]
        ]
        digests = {key.digest, *(other.digest for other in others)}
        assert len(digests) == 6
        assert all(len(digest) == 32 for digest in digests)

    def test_the_digest_is_the_same_on_every_machine_and_python(self) -> None:
        assert TaskKey(**TASK).digest == "0dbb522e82ca3fe4d498a03e427fc99b"

    def test_for_people(self) -> None:
        assert str(TaskKey(**TASK)) == "nightly.label of run r1"
        assert str(TaskKey(**TASK, map_index=2)) == "nightly.label[2] of run r1"


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


def test_prompts_know_their_columns() -> None:
    chat = parse(
        PromptArguments,
        {
            "messages": [
                {"role": "system", "content": "{row.b}"},
                {"role": "user", "content": "{row.a}{row.b}"},
            ]
        },
    )
    assert list(chat.column_arguments()) == ["b", "a"]
    of_column = PromptArguments(messages_column="m", system_prompt="{row.m}{row.x}")
    assert of_column.column_arguments() == {"m": "messages_column", "x": "system_prompt"}
    of_function = PromptArguments(prompt_function="m:f", system_prompt="{row.x}")
    assert of_function.column_arguments() == {"x": "system_prompt"}


def test_gpus_of_a_replica() -> None:
    engine = {"engine": "vllm", "engine_args": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}}
    assert spec(**engine).gpus_per_replica == 8
    engine["engine_args"]["prefill_context_parallel_size"] = 2
    assert spec(**engine).gpus_per_replica == 16
    assert spec().gpus_per_replica == 1


def test_the_spec_has_a_json_schema() -> None:
    schema = BatchInferenceSpec.model_json_schema()
    assert set(document()) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    json.dumps(InputArguments.model_json_schema())
