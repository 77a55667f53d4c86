# SPDX-License-Identifier: Apache-2.0
"""Operator arguments become a spec; every mistake is one sentence with the operator's names."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.operators.arguments import FIELDS, spec_of_fields
from tests.support.approved import AssertSentences

GOOD: dict[str, Any] = {"source": "/in", "prompt": "Say {row.x}", "model": "m", "destination": "/out"}

CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE


def spec(**arguments: Any) -> Any:
    return spec_of_fields({**GOOD, **arguments})


def test_every_argument_finds_its_place() -> None:
    given = {
        "source": ["/in/a", "s3://b/*.csv"], "format": "csv", "csv_options": {"delimiter": ";"},
        "limit": "5", "id_column": "id",
        "prompt": "Say {row.x}", "system_prompt": "Be short.",
        "special_tokens_in_text": "escape", "on_overlong": "error", "on_blank": "ask",
        "image_roots": ["/photos"], "image_hosts": ["images.example.com"], "max_image_bytes": 9,
        "max_image_pixels": 7, "image_timeout": timedelta(seconds=2),
        "model": "m", "chat_template": "{{ messages }}", "chat_template_kwargs": {"thinking": False},
        "sampling": {"temperature": 0, "n": 2}, "sampling_column": "s", "response_format": "json_object",
        "on_truncated": "error",
        "engine": "ray_data_llm", "engine_args": {"max_model_len": 256}, "replicas": 2,
        "accelerator_type": "H200", "num_cpus": 0.5, "rows_in_flight": 7, "batch_size": 3,
        "processor": {"batch_size": 3}, "max_restarts": 1,
        "destination": "s3://b/out/", "destination_format": "jsonl", "rows_per_part": 10,
        "on_destination_owned": "take_over", "output_prefix": "llm_", "response_column": "industry",
        "postprocess": "labels:parse", "preserve_order": True,
        "reuse": "s3://b/store/", "reuse_max_age": timedelta(days=1), "deduplicate": False,
        "on_clear": "regenerate",
        "max_error_fraction": 0.1, "max_errors": 9, "max_row_attempts": 2, "max_tokens_total": 1000,
        "max_gpu_hours": 1.5, "flush_interval": timedelta(seconds=5),
        "no_progress_timeout": timedelta(minutes=5), "cluster_wait": 60,
        "orphan_timeout": timedelta(hours=1),
        "gpu_hour_price": {"H200": 3.9}, "currency": "EUR", "max_cost": 20, "report_samples": 3,
    }  # fmt: skip
    converted = {
        "limit": 5, "destination": "s3://b/out", "reuse": "s3://b/store", "reuse_max_age": 86400.0,
        "image_timeout": 2.0, "flush_interval": 5.0, "no_progress_timeout": 300.0, "cluster_wait": 60.0,
        "orphan_timeout": 3600.0,
        "csv_options": {"delimiter": ";", "encoding": "utf-8", "header": True},
    }  # fmt: skip
    not_given = dict.fromkeys((
        "messages", "messages_column", "prompt_column", "prompt_function", "prompt_function_digest",
        "template_time", "postprocess_digest", "deadline", "keep_warm", "response_format_digest",
        "adapter", "adapter_column", "tools", "tool_choice", "tool_call_parser", "query", "document",
        "documents_column", "top_n", "chunk_tokens", "served_model_name", "last_run", "served_batch",
        "steps", "asked_step", "num_gpus",
    ))  # fmt: skip
    plain = spec_of_fields(given).model_dump(exclude={"submission", "schema_version"})
    of_others = {"pooling": {}, "embed_dtype": "float32", "adapters": {}, "adapter_digests": {}}
    of_others |= {"chunk_overlap_tokens": 0, "images": [], "keep_images": False}
    assert plain == {**given, **converted, **not_given, **of_others, "model_task": "generate"}


def test_images_may_be_one_column_or_the_text_of_a_list() -> None:
    assert spec(images="photo").images == ["photo"]
    assert spec(images='["front", "back"]', keep_images="true").images == ["front", "back"]
    assert spec(images="photo", image_roots="s3://b/photos", image_hosts="A.com").image_hosts == ["a.com"]


def test_arguments_of_vectors_find_their_place() -> None:
    given = {"model_task": "embed", "pooling": {"dimensions": "64", "use_activation": "false"}}
    built = spec(**given, embed_dtype="float16")
    assert (built.model_task, built.embed_dtype) == ("embed", "float16")
    assert built.pooling == {"dimensions": 64, "use_activation": False}


def test_adapters_may_be_text_and_rows_choose_by_a_column() -> None:
    built = spec(adapters='{"acme": "s3://b/acme", "umbrella": "org/umbrella@v2"}', adapter_column="customer")
    assert built.adapters == {"acme": "s3://b/acme", "umbrella": "org/umbrella@v2"}
    assert (built.adapter_column, built.adapter) == ("customer", None)
    assert spec(adapter="/adapters/acme").adapter_locations == {"/adapters/acme": "/adapters/acme"}


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_tools_may_be_text_and_tool_choice_a_name() -> None:
    named = {"type": "function", "function": {"name": "add"}}
    for tools in (TOOLS, json.dumps(TOOLS), [{"function": TOOLS[0]["function"]}]):
        for choice in ("add", named, json.dumps(named)):
            built = spec(tools=tools, tool_choice=choice, tool_call_parser="hermes")
            assert (built.tools, built.tool_choice, built.tool_call_parser) == (TOOLS, named, "hermes")
    assert spec(tools=TOOLS, tool_choice="auto", tool_call_parser="hermes").tool_choice is None


def test_broken_schema_of_tools_is_refused_while_parsing() -> None:
    broken = {"function": {"name": "x", "parameters": {"properties": {"a": {"type": "int"}}}}}
    with pytest.raises(SpecError) as refused:
        spec(tools=[*TOOLS, broken], tool_call_parser="hermes")
    assert str(refused.value).startswith(
        "tools: 1: function: parameters is not a JSON schema ($.properties.a.type: 'int' is not a type of "
        "JSON; known are integer, number, boolean, string, array, null, object); correct it"
    )
    old = {"function": {"name": "add", "parameters": {"properties": {"a": {"items": [{"type": "string"}]}}}}}
    assert len(spec(tools=[old], tool_call_parser="hermes").tools) == 1  # as older drafts write it


BROKEN = {"type": "object", "properties": {"total": {"type": "integr"}}}


def test_broken_schema_of_responses_is_refused_while_parsing(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec, SpecError)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        {"type": "array", "items": [{"type": "string"}]},
        {"type": "string", "pattern": r"\p{L}+"},
    ],
    ids=["Draft 4", "Draft 7", "a pattern that Python lacks"],
)
def test_schemas_that_the_cluster_may_take_are_not_refused(part: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": part}}
    assert spec(response_format=schema).response_format == schema
    tools = [{"function": {"name": "add", "parameters": schema}}]
    assert len(spec(tools=tools, tool_call_parser="hermes").tools) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": "{row.p}"},
        {"messages": [{"role": "user", "content": "{row.c}"}]},
        {"messages_column": "chat", "system_prompt": "s"},
        {"prompt_column": "raw"},
        {"prompt_function": "prompts:make"},
    ],
)
def test_five_ways_to_ask(arguments: dict[str, Any]) -> None:
    built = spec(**{"prompt": None, **arguments})
    assert built.model_dump(include=set(PromptArguments.model_fields), exclude_defaults=True) == arguments


@pytest.mark.parametrize(
    ("source", "paths", "kind"),
    [
        ("/in", ["/in"], None),
        (Path("/in"), ["/in"], None),
        (("/a", Path("/b")), ["/a", "/b"], None),
        (ObjectStoragePath("file:///in/x"), ["file:///in/x"], None),
        ({"uri": "s3://b/data/c1", "format": "jsonl", "rows": 3}, ["s3://b/data/c1"], "jsonl"),
        ([{"uri": "/a", "format": "parquet"}, {"uri": "/b", "format": "parquet"}], ["/a", "/b"], "parquet"),
    ],
)
def test_sources(source: Any, paths: list[str], kind: str | None) -> None:
    built = spec(source=source)
    assert (built.source, built.format) == (paths, kind)


def test_a_given_format_wins_over_the_source_results() -> None:
    assert spec(source={"uri": "/a", "format": "jsonl"}, format="csv").format == "csv"


def test_the_echo_engine_needs_no_model() -> None:
    assert spec(model=None, engine="echo").model == "echo"


def test_reuse_max_age_is_not_set_without_a_store_or_age() -> None:
    assert spec(reuse="").reuse is None
    assert spec(reuse=Path("/store")).reuse_max_age is None


def test_rendered_text_becomes_typed_values() -> None:
    built = spec(
        limit=" 5 ", replicas="2", num_cpus="0.5", max_error_fraction="0.1", max_errors="10",
        max_tokens_total="1000", preserve_order="True", deduplicate="false", flush_interval="5",
        no_progress_timeout="1e3", cluster_wait="0", reuse="/store", reuse_max_age="60",
        sampling={"max_tokens": "7", "temperature": "0.5", "ignore_eos": "True", "n": "2", "stop": ["7"]},
        engine_args={"tensor_parallel_size": "2", "gpu_memory_utilization": "0.8", "max_model_len": "4k"},
    )  # fmt: skip
    assert (built.limit, built.replicas, built.num_cpus) == (5, 2, 0.5)
    assert spec(num_gpus=" 0.25 ").num_gpus == 0.25
    assert (built.max_error_fraction, built.max_errors, built.max_tokens_total) == (0.1, 10, 1000)
    assert (built.flush_interval, built.no_progress_timeout, built.cluster_wait) == (5.0, 1000.0, 0.0)
    assert (built.preserve_order, built.deduplicate, built.reuse_max_age) == (True, False, 60.0)
    assert built.sampling == {
        "max_tokens": 7, "temperature": 0.5, "ignore_eos": True, "n": 2, "stop": ["7"],
    }  # fmt: skip
    assert built.engine_args == {
        "tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "max_model_len": "4k",
    }  # fmt: skip


@pytest.mark.parametrize("given", [(1, 4), [1, 4], ("1", " 4 "), "(1, 4)", " [1,4]", '["1", "4"]', (1.0, 4)])
def test_replicas_may_be_a_range(given: object) -> None:
    built = spec(replicas=given)
    assert built.replicas == (1, 4)
    assert parse(BatchInferenceSpec, built.model_dump_json()) == built


def test_keep_warm_takes_durations() -> None:
    assert spec(keep_warm=timedelta(minutes=5)).keep_warm == 300.0
    assert spec(keep_warm="0").keep_warm == 0.0


@pytest.mark.parametrize("text", ["", " ", "None"])
def test_none_as_text_counts_as_not_given(text: str) -> None:
    optional = set(FIELDS) - GOOD.keys()
    assert spec(**dict.fromkeys(optional, text)) == spec()
    inside = {"max_tokens": text, "temperature": 0, "structured_outputs": text}
    assert spec(sampling=inside).sampling == {"temperature": 0, "structured_outputs": None}


ONE_OF = (
    "prompt: exactly one of prompt, messages, messages_column, prompt_column, prompt_function is needed, or "
    "steps, but "
)


WITH_A_COLUMN = "system_prompt: it has no effect together with prompt_column; write it into the column."


def test_every_mistake_is_one_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec, SpecError)


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("source", "['/a', '/b']", ["/a", "/b"]),
        ("source", '["/a"]', ["/a"]),
        ("source", "{'uri': '/a', 'format': 'jsonl'}", ["/a"]),
        ("sampling", "{'temperature': 0, 'stop': None}", {"temperature": 0, "stop": None}),
        ("sampling", '{"seed": "7"}', {"seed": 7}),
        ("engine_args", '{"enforce_eager": true}', {"enforce_eager": True}),
        ("chat_template_kwargs", "{'enable_thinking': False}", {"enable_thinking": False}),
        (
            "sampling",
            {"structured_outputs": {"json": '{"type": "object"}'}},
            {"structured_outputs": {"json": {"type": "object"}}},
        ),
        ("sampling", {"structured_outputs": "{'choice': ['a']}"}, {"structured_outputs": {"choice": ["a"]}}),
        ("sampling", {"structured_outputs": {"choice": "['a']"}}, {"structured_outputs": {"choice": ["a"]}}),
    ],
)
def test_lists_and_dictionaries_may_be_text(argument: str, text: Any, value: Any) -> None:
    assert getattr(spec(**{argument: text}), argument) == value


def test_messages_may_be_text() -> None:
    (message,) = spec(prompt=None, messages="[{'role': 'user', 'content': '{row.x}'}]").messages
    assert (message.role, message.content) == ("user", "{row.x}")


def test_generators_count_as_lists() -> None:
    assert spec(source=(path for path in ["/a"])).source == ["/a"]
    assert spec(sampling={"stop": (one for one in "ab")}).sampling == {"stop": ["a", "b"]}


UNKNOWN = "vLLM has no such sampling parameter; write"


def test_sampling_that_vllm_refuses_is_found_before_a_job(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda sampling: spec(sampling=sampling), SpecError)


def test_openais_response_format_names_ours() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for given in (wrapped, schema, str(schema), json.dumps(wrapped)):
        assert spec(response_format=given).response_schema == schema
    with pytest.raises(SpecError, match=r"^response_format: it wraps a schema, as OpenAI's"):
        spec(response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    assert spec(response_format={"type": "json_object"}).response_format == "json_object"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("h100", "H100"),
        ("NVIDIA-H100", "H100"),
        ("A100 80GB", "A100-80G"),
        ("Tesla T4", "T4"),
        ("l40s", "L40S"),
    ],
)
def test_accelerator_types_in_another_form(given: str, meant: str) -> None:
    with pytest.raises(SpecError, match=f"^accelerator_type: Ray calls {given!r} {meant!r}; write it so.$"):
        spec(accelerator_type=given)
    for name in (meant, "B900", "TPU-V9"):
        assert spec(accelerator_type=name).accelerator_type == name
