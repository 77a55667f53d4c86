# SPDX-License-Identifier: Apache-2.0
"""Arguments by group: what they may be, what they decide, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.data import ReportArguments
from airflow_provider_raybatch.contract.arguments.engine import revision_of
from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.arguments.prompt import PromptArguments
from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error
from tests.support.tools import ADD, tool


def test_impossible_csv_options_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda options: spec_error(csv_options=options))


def test_csv_options_are_as_python_names_them() -> None:
    options = spec(csv_options={"encoding": "Latin1", "header": ["a", "b"]}).csv_options
    assert options is not None
    assert (options.encoding, options.header, options.delimiter) == ("iso8859-1", ("a", "b"), None)


NO_COLUMN = "names no column, so each row would pay for the same request; "


def test_a_request_that_no_row_changes_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


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


def test_prompt_and_system_prompt_know_their_columns() -> None:
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
    assert of_column.column_arguments() == {"m": "messages", "x": "system_prompt"}
    of_function = PromptArguments(prompt_function="m:f", system_prompt="{row.x}")
    assert of_function.column_arguments() == {"x": "system_prompt"}


def test_one_column_needs_no_list() -> None:
    assert spec(images="photo").images == ["photo"]
    assert spec(images=["front", "back"]).images == ["front", "back"]


def test_prompt_without_placeholders_is_of_its_row_with_images() -> None:
    made = spec(prompt="What does the picture show?", images="photo")
    assert made.column_arguments() == {"photo": "images"}
    assert spec(images=["photo"]).column_arguments() == {"photo": "images", "text": "prompt"}


def test_image_hosts_are_lowered_and_image_timeout_is_seconds() -> None:
    made = spec(image_hosts="Images.Example.com", image_timeout="2.5")
    assert (made.image_hosts, made.image_timeout) == (["images.example.com"], 2.5)


def test_argument_without_effect_or_sense_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


@pytest.mark.parametrize("value", [0, "0", None, "four"])
def test_cache_that_is_off_goes_with_images(value: Any) -> None:
    assert spec(images="a", engine_args={"mm_processor_cache_gb": value}).images == ["a"]


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


def test_arguments_of_another_model_task_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_classify_takes_whole_chats_as_they_are() -> None:
    assert spec(model_task="classify", messages_column="chat", chat_template="{{ messages }}").pools


def test_wrong_pooling_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **pooling: spec_error(model_task="embed", pooling=pooling))


def test_a_score_needs_a_query_and_documents(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(model_task="score", **fields))


def test_what_decides_a_score() -> None:
    """How many documents a ranking keeps does not."""
    fields = {"model_task": "score", "query": "{row.q}", "documents_column": "d"}
    one, other = spec(**fields), spec(**fields, top_n=2)
    assert one.response_digest == other.response_digest
    assert one.fingerprint != other.fingerprint
    assert one.response_digest != spec(**{**fields, "query": "{row.other}"}).response_digest
    assert one.column_arguments() == {"d": "documents_column", "q": "query"}


def test_a_column_of_texts_may_be_cut() -> None:
    assert spec(model_task="embed", prompt_column="text", on_overlong="truncate").pools


def test_what_decides_a_vector() -> None:
    """Its numbers' type does not, and the context only where texts are cut."""
    fields = {"model_task": "embed", "engine_args": {"max_model_len": 9}}
    one = spec(**fields)
    assert one.response_digest == spec(model_task="embed", embed_dtype="float16").response_digest
    assert one.response_digest != spec(**fields, pooling={"dimensions": 2}).response_digest
    assert one.response_digest != spec().response_digest
    cut = spec(**fields, on_overlong="truncate")
    assert cut.response_digest != spec(model_task="embed", on_overlong="truncate").response_digest
    assert one.fingerprint != spec(**fields, embed_dtype="float16").fingerprint


@pytest.mark.parametrize("model_task", sorted(MODEL_TASKS.keys() - {"embed"}))
@pytest.mark.parametrize("name", ["chunk_tokens", "chunk_overlap_tokens"])
def test_other_kinds_of_tasks_have_no_chunks(model_task: str, name: str) -> None:
    pairs = {"prompt": None, "query": "fox", "document": "{row.text}"} if model_task == "score" else {}
    made = spec_error(model_task=model_task, **{"chunk_tokens": 8, name: 4}, **pairs)
    assert made.startswith("chunk_")
    assert f"it has no effect with model_task '{model_task}': it makes no vectors" in made


def test_chunks_that_can_not_be_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(model_task="embed", **fields))


def test_chunk_tokens_and_chunk_overlap_tokens_decide_a_vector() -> None:
    made = [
        spec(model_task="embed"),
        spec(model_task="embed", chunk_tokens=8),
        spec(model_task="embed", chunk_tokens=9),
        spec(model_task="embed", chunk_tokens=9, chunk_overlap_tokens=2),
    ]
    for digests in ({one.response_digest for one in made}, {one.fingerprint for one in made}):
        assert len(digests) == 4


def test_what_is_no_tool_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda tools: spec_error(tools=tools))


def test_what_does_not_go_with_tools_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_tools_are_part_of_the_request() -> None:
    asked = [{}, {"tools": [ADD]}, {"tools": [ADD], "tool_choice": "add"}, {"tools": [tool("add", {})]}]
    assert len({spec(**fields).response_digest for fields in asked}) == len(asked)
    assert spec(tools=[ADD], tool_choice="auto").response_digest == spec(tools=[ADD]).response_digest
    assert spec(tools=[ADD], tool_choice="none", response_format="json_object").optional_columns == []
    assert spec(tools=[ADD]).optional_columns == ["tool_calls"]


ROWS = {"adapters": {"acme": "/adapters/acme"}, "adapter_column": "customer"}


def test_what_names_no_adapter_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_a_name_on_the_hub_may_have_a_revision() -> None:
    assert revision_of("acme/lora@v2") == ("acme/lora", "v2")
    assert revision_of("/data/a@b") == ("/data/a@b", None)
    assert revision_of("s3://b/a@b") == ("s3://b/a@b", None)
    pinned = spec(adapter=f"acme/lora@{'0' * 40}")
    assert set(pinned.adapter_locations) == {"acme/lora"}


def test_rows_with_an_adapter_may_share_a_prompt() -> None:
    assert spec(prompt="Write a poem.", **ROWS).adapter_column == "customer"
    assert "names no column" in spec_error(prompt="Write a poem.", adapter="/a")


def test_a_listed_adapter_more_changes_the_job_and_its_digest() -> None:
    more = spec(**{**ROWS, "adapters": {**ROWS["adapters"], "umbrella": "/u"}})  # type: ignore[dict-item]
    assert len({one.response_digest for one in (spec(), spec(**ROWS), more)}) == 3
    assert spec(**ROWS, adapter_digests={"acme": "1"}).fingerprint == spec(**ROWS).fingerprint


@pytest.mark.parametrize(("at_once", "swaps"), [(None, False), (1, True), (2, False)])
def test_an_engine_swaps_adapters_if_it_holds_fewer(at_once: int | None, swaps: bool) -> None:
    args = {} if at_once is None else {"max_loras": at_once}
    rows = {"adapters": {"a": "/a", "b": "/b"}, "adapter_column": "c"}
    assert spec(engine="vllm", engine_args=args, **rows).swaps_adapters is swaps


@pytest.mark.parametrize("share", [0.5, 0.0001, 0.3333, 0.9999, "0.25"])
def test_a_share_is_a_part_of_one_gpu(share: float | str) -> None:
    made = spec(num_gpus=share)
    assert (made.num_gpus, made.shares_gpu) == (float(share), True)


@pytest.mark.parametrize("whole", [None, 1, 1.0])
def test_a_whole_gpu_is_not_shared(whole: float | None) -> None:
    assert not spec(num_gpus=whole).shares_gpu


def test_a_wrong_share_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(**{"engine": "vllm", **fields}))


def test_less_memory_than_the_share_is_taken() -> None:
    args = {"gpu_memory_utilization": 0.5}
    assert spec(engine="vllm", num_gpus=0.5, engine_args=args).engine_args == args


def test_gpu_hour_price_is_of_any_gpu_or_by_type() -> None:
    assert parse(CostArguments, {"gpu_hour_price": "2.5"}).gpu_hour_price == {"*": 2.5}
    assert parse(CostArguments, {"gpu_hour_price": {"H100": 3}}).gpu_hour_price == {"H100": 3.0}
    assert parse(CostArguments, {}).gpu_hour_price is None


@pytest.mark.parametrize("price", ["much", -1, {"H100": -1}, {"H100": "nan"}, {"H100": None}, ["H100"]])
def test_gpu_hour_price_that_is_none_is_refused(price: object) -> None:
    with pytest.raises(SpecError, match=r"^gpu_hour_price(\.\S+)?: "):
        parse(CostArguments, {"gpu_hour_price": price})


@pytest.mark.parametrize("most", [0, -1, "nan", "inf", "much"])
def test_max_cost_that_is_no_amount_is_refused(most: object) -> None:
    with pytest.raises(SpecError, match=r"^max_cost: "):
        parse(CostArguments, {"max_cost": most})


@pytest.mark.parametrize("samples", [-1, 101, "some"])
def test_report_samples_out_of_range_are_refused(samples: object) -> None:
    with pytest.raises(SpecError, match=r"^report_samples: "):
        parse(ReportArguments, {"report_samples": samples})


def test_rows_that_are_not_shown_are_not_logged_by_vllm() -> None:
    logs = {"engine": "vllm", "engine_args": {"enable_log_requests": True}}
    assert spec_error(**logs, report_samples=0).startswith("engine_args: enable_log_requests has vLLM log ")
    assert spec(**logs).shows_rows
    assert not spec(report_samples=0).shows_rows
