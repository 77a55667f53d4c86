# SPDX-License-Identifier: Apache-2.0
"""Operator arguments become a spec; every mistake is one sentence with the operator's names."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_raybatch.coercion import boolean, seconds
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, build_spec

GOOD: dict[str, Any] = {"source": "/in", "prompt": "Say {row.x}", "model": "m", "destination": "/out"}

CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE


def spec(**arguments: Any) -> Any:
    return build_spec({**GOOD, **arguments})


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
    plain = build_spec(given).model_dump(exclude={"submission", "schema_version"})
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
        "JSON; did you mean 'integer'?); correct it"
    )
    old = {"function": {"name": "add", "parameters": {"properties": {"a": {"items": [{"type": "string"}]}}}}}
    assert len(spec(tools=[old], tool_call_parser="hermes").tools) == 1  # as older drafts write it


BROKEN = {"type": "object", "properties": {"total": {"type": "integr"}}}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": BROKEN}, "response_format: the schema"),
        ({"response_format": json.dumps(BROKEN)}, "response_format: the schema"),
        ({"sampling": {"structured_outputs": {"json": BROKEN}}}, "sampling: structured_outputs: json"),
    ],
    ids=["response_format", "as text", "sampling"],
)
def test_broken_schema_of_responses_is_refused_while_parsing(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**fields)
    assert str(refused.value) == (
        f"{name} is not a JSON schema ($.properties.total.type: 'integr' is not a type of JSON; did you mean "
        "'integer'?); correct it."
    )


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


def test_keep_warm_takes_durations() -> None:
    assert spec(keep_warm=timedelta(minutes=5)).keep_warm == 300.0
    assert spec(keep_warm="0").keep_warm == 0.0


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


@pytest.mark.parametrize("text", ["", " ", "None"])
def test_none_as_text_counts_as_not_given(text: str) -> None:
    optional = set(ARGUMENTS) - GOOD.keys()
    assert spec(**dict.fromkeys(optional, text)) == spec()
    inside = {"max_tokens": text, "temperature": 0, "structured_outputs": text}
    assert spec(sampling=inside).sampling == {"temperature": 0, "structured_outputs": None}


def test_the_callers_arguments_stay_untouched() -> None:
    arguments = {
        **GOOD,
        "sampling": {"structured_outputs": {"choice": ["a", "b"]}},
        "engine_args": {"x": {"y": [1]}},
        "chat_template_kwargs": {"deep": {"er": 1}},
    }
    before = copy.deepcopy(arguments)
    built = build_spec(arguments)
    built.sampling["structured_outputs"]["choice"].append("c")
    built.engine_args["x"]["y"].append(2)
    assert arguments == before


ONE_OF = (
    "prompt: exactly one of prompt, messages, messages_column, prompt_column, prompt_function is needed, or "
    "steps, but "
)


WITH_A_COLUMN = "system_prompt: it has no effect together with prompt_column; write it into the column."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"source": None}, "source: a value is needed here and none was given; name a file, a folder,"),
        ({"destination": None}, "destination: a value is needed here and none was given; name a folder."),
        ({"model": None}, "model: a value is needed here and none was given; name a Hugging Face id or a"),
        ({"prompt": None}, ONE_OF + "none is given."),
        ({"prompt_column": "c"}, ONE_OF + "prompt and prompt_column are given together."),
        ({"source": 5}, "source: 5 is not a path; name a file, a folder, a glob or a list."),
        ({"source": [1]}, "source: 1 is not a path; name a file, a folder, a glob or a list."),
        ({"source": [["/a"]]}, "source: ['/a'] is not a path; a list of paths holds texts alone."),
        ({"source": {"/a"}}, "source: {'/a'} is a set, which has no order; make a list of it."),
        ({"source": frozenset({"/a"})}, "source: frozenset({'/a'}) is a set, which has no order; make"),
        ({"source": []}, "source: list should have at least 1 item"),
        ({"source": {"rows": 1}}, "source: {'rows': 1} has no 'uri'; give paths, or what another batch task"),
        ({"source": "ftp://x/y"}, "source: 'ftp://x/y' has the scheme 'ftp'; use a local path or one of"),
        ({"source": "  "}, "source: a value is needed here and none was given; name a file"),
        ({"source": ["  "]}, "source: a path is empty"),
        ({"source": "s3:///key"}, "source: 's3:///key' names no bucket; write it as s3://bucket/key."),
        ({"source": "/x/{{ ds }}"}, "source: '/x/{{ ds }}' still has a Jinja expression"),
        (
            {"format": "orc"},
            "format: it must be 'parquet', 'jsonl', 'csv', 'arrow' or 'openai_batch', but it is 'orc'.",
        ),
        ({"limit": 0}, "limit: it must be at least 1, but it is 0."),
        ({"limit": "many"}, "limit: it must be a whole number"),
        ({"prompt": ""}, ONE_OF + "none is given."),
        ({"prompt": 7}, "prompt: it must be text, but it is 7."),
        ({"prompt": None, "messages": []}, "messages: list should have at least 1 item"),
        ({"prompt": None, "messages": [{"role": "user"}]}, "messages.0.content: a value is needed here"),
        (
            {"prompt": None, "messages": [{"role": "u", "content": "x", "y": "z"}]},
            "messages.0.y: there is",
        ),
        ({"prompt": None, "prompt_column": "None"}, ONE_OF + "none is given."),
        ({"prompt": None, "prompt_function": "f"}, "prompt_function: 'f' is not an import path; write it as"),
        ({"postprocess": "f"}, "postprocess: 'f' is not an import path; write it as"),
        ({"prompt": None, "prompt_column": "c", "system_prompt": "s"}, WITH_A_COLUMN),
        (
            {"prompt": None, "messages": [{"role": "user", "content": "c"}], "system_prompt": "s"},
            "system_prompt: it has no effect together with messages; put a system message into messages.",
        ),
        ({"prompt": "T {subject}"}, "prompt: 'T {subject}' names no column, so each row would pay for the"),
        ({"prompt": "T", "system_prompt": "{{ row.x }}"}, "system_prompt: '{{ row.x }}' has double braces,"),
        ({"prompt": None, "messages": [{"role": "user", "content": "c"}]}, "messages: 'c' names no column,"),
        ({"model": ""}, "model: a value is needed here and none was given; name a Hugging Face id"),
        ({"sampling": {"n": 0}}, "sampling: n: the number of completions must be a whole number"),
        ({"sampling": {"max_tokens": "many"}}, "sampling: max_tokens: it must be a whole number, but it is"),
        ({"sampling": {"n": "1.5"}}, "sampling: n: it must be a whole number, but it is '1.5'."),
        ({"sampling": {"top_p": [1]}}, "sampling: top_p: it must be a number, but it is [1]."),
        ({"engine_args": {"enforce_eager": "no"}}, "engine_args: enforce_eager: it must be true or false,"),
        ({"sampling": "hot"}, "sampling: it must be a dictionary, but it is 'hot'."),
        ({"engine": "tgi"}, "engine: it must be 'vllm', 'ray_data_llm' or 'echo', but it is 'tgi'."),
        ({"engine": "VLM"}, "engine: it must be 'vllm', 'ray_data_llm' or 'echo', but it is 'VLM'; did you"),
        ({"engine_args": [1]}, "engine_args: it must be a dictionary, but it is [1]."),
        ({"processor": {"x": 1}}, "processor: only engine 'ray_data_llm' takes it, not 'vllm'"),
        ({"replicas": 0}, "replicas: it must be at least 1, but it is 0."),
        ({"replicas": "many"}, "replicas: it must be a whole number, but it is 'many'."),
        ({"replicas": 1.5}, "replicas: it must be a whole number, but it is 1.5."),
        ({"replicas": {1}}, "replicas: it must be a whole number, but it is {1}."),
        ({"replicas": (0, 2)}, "replicas: the fewest of a range must be at least 1, but it is (0, 2)."),
        ({"replicas": (3, 2)}, "replicas: the most of a range must be at least its fewest, but it is (3,"),
        ({"replicas": ("a", 2)}, "replicas: a range is (fewest, most), two whole numbers, but it is ('a',"),
        ({"replicas": (1, 2, 3)}, "replicas: a range is (fewest, most), two whole numbers, but it is (1,"),
        ({"replicas": []}, "replicas: a range is (fewest, most), two whole numbers, but it is ()."),
        ({"replicas": "(1, x)"}, "replicas: a range is (fewest, most), two whole numbers, but it is ('1',"),
        ({"num_cpus": -1}, "num_cpus: it must be more than 0, but it is -1."),
        ({"max_restarts": -1}, "max_restarts: it must be at least 0, but it is -1."),
        ({"destination": "https://x/y"}, "destination: 'https://x/y' has the scheme 'https'; use a local"),
        ({"destination": "/out/*"}, "destination: '/out/*' has a wildcard; name one folder."),
        ({"destination": "/in/"}, "destination: '/in' is also the source; choose another folder."),
        ({"destination": ["/out"]}, "destination: ['/out'] is not a path; give it as text."),
        (
            {"destination_format": "csv"},
            "destination_format: it must be 'parquet', 'jsonl' or 'openai_batch', but",
        ),
        ({"rows_per_part": 0}, "rows_per_part: it must be at least 1, but it is 0."),
        ({"on_destination_owned": "x"}, "on_destination_owned: it must be 'refuse' or 'take_over'"),
        ({"max_error_fraction": 2}, "max_error_fraction: it must be at most 1, but it is 2."),
        ({"no_progress_timeout": "soon"}, "no_progress_timeout: 'soon' is not a duration; give seconds or"),
        ({"no_progress_timeout": 0}, "no_progress_timeout: it must be more than 0, but it is 0."),
        ({"cluster_wait": -5}, "cluster_wait: it must be at least 0, but it is -5."),
        ({"engine": "ecko", "model": None}, "engine: it must be 'vllm', 'ray_data_llm' or 'echo', but it is"),
        ({"response_format": "xml"}, "response_format: it must be 'text', 'json_object', a JSON"),
        ({"response_format": {}}, "response_format: it must be 'text', 'json_object', a JSON"),
        ({"on_truncated": "drop"}, "on_truncated: it must be 'keep' or 'error', but it is 'drop'."),
        ({"max_errors": -1}, "max_errors: it must be at least 0, but it is -1."),
        ({"max_row_attempts": 0}, "max_row_attempts: it must be at least 1"),
        ({"max_tokens_total": 0}, "max_tokens_total: it must be at least 1"),
        ({"max_gpu_hours": 0}, "max_gpu_hours: it must be more than 0, but it is 0."),
        ({"keep_warm": -1}, "keep_warm: it must be at least 0, but it is -1."),
        ({"keep_warm": 90000}, "keep_warm: it must be at most 86400, but it is 90000."),
        ({"keep_warm": "long"}, "keep_warm: 'long' is not a duration; give seconds or a timedelta."),
        ({"keep_warm": 60, "engine": "ray_data_llm"}, "keep_warm: engine 'ray_data_llm' ends its engines"),
        ({"flush_interval": 0}, "flush_interval: it must be more than 0, but it is 0."),
        ({"flush_interval": "often"}, "flush_interval: 'often' is not a duration; give seconds"),
        ({"reuse": 7}, "reuse: 7 is not a path; give it as text."),
        ({"reuse": "/store/*"}, "reuse: '/store/*' has a wildcard; name one folder."),
        ({"reuse": "https://x/store"}, "reuse: 'https://x/store' has the scheme 'https'; use a local path"),
        ({"reuse": "/out/"}, "reuse: '/out' is also the destination; choose another folder."),
        ({"reuse": "/in/store"}, "reuse: '/in/store' and the source '/in' lie one inside the other"),
        ({"reuse": "/s", "reuse_max_age": -1}, "reuse_max_age: it must be more than 0, but it is -1."),
        ({"reuse": "/s", "reuse_max_age": "old"}, "reuse_max_age: 'old' is not a duration; give seconds or"),
        ({"reuse_max_age": 60}, "reuse_max_age: it has no effect without reuse; name the folder of a"),
        ({"deduplicate": "some"}, "deduplicate: it must be true or false"),
        ({"on_clear": "drop"}, "on_clear: it must be 'keep' or 'regenerate', but it is 'drop'."),
        ({"preserve_order": "sorted"}, "preserve_order: it must be true or false"),
        ({"sampling": {"stop": {"a", "b"}}}, "sampling: a set has no order, so each attempt may read it"),
        ({"engine_args": {"x": [{"y": frozenset("a")}]}}, "engine_args: a set has no order"),
        ({"engine_args": {"hook": print}}, "engine_args: it can't be written as JSON (Unable to serialize"),
        ({"chat_template_kwargs": {"x": object()}}, "chat_template_kwargs: it can't be written as JSON"),
        ({"sampling": {"x": b"\xff"}}, "sampling: it can't be written as JSON"),
        (
            {"system_prompt": "a\ud800"},
            "system_prompt: 'a\\ud800' has half a character at position 1;",
        ),
        ({"sampling": {"top_p": float("nan")}}, "sampling: {'top_p': nan} has the number nan, which JSON"),
        ({"engine_args": {"x": [float("inf")]}}, "engine_args: {'x': [inf]} has the number inf, which JSON"),
        ({"sampling": CIRCLE}, "sampling: it can't be written as JSON ("),
        ({"num_cpus": float("inf")}, "num_cpus: it must be a finite number, but it is inf."),
        ({"max_gpu_hours": "1e999"}, "max_gpu_hours: it must be a finite number, but it is '1e999'."),
        ({"cluster_wait": 10**400}, "cluster_wait: 1000"),
        ({"cluster_wait": float("inf")}, "cluster_wait: inf is not a duration; give seconds or a timedelta."),
        ({"samplng": {}}, "samplng: it is not an argument; did you mean 'sampling'?"),
    ],
)
def test_every_mistake_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**arguments)
    message = str(caught.value)
    assert message.startswith(sentence)
    assert message.endswith((".", "?"))
    assert "\n" not in message


def test_truths() -> None:
    assert [boolean(value, "x") for value in (True, "True", " false ")] == [True, True, False]
    for value in ("yes", 1, None, "{{ x }}"):
        with pytest.raises(SpecError, match="x: it must be true or false, but it is"):
            boolean(value, "x")


def test_durations() -> None:
    assert (seconds("90", "x"), seconds("None", "x"), seconds("", "x")) == (90, None, None)
    assert seconds(timedelta(minutes=1), "x") == 60
    assert seconds(1.5, "x") == 1.5
    assert seconds(None, "x") is None
    with pytest.raises(SpecError, match="x: True is not a duration"):
        seconds(True, "x")
    for endless in (float("inf"), float("nan")):
        with pytest.raises(SpecError, match=r"x: (inf|nan) is not a duration"):
            seconds(endless, "x")
