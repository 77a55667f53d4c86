# SPDX-License-Identifier: Apache-2.0
"""An error in a spec is one sentence with field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.specs import spec_error

REASONING = (
    "engine_args: reasoning_parser 'qwen3' lets the model reason before its answer, and engine "
    "'ray_data_llm' does not split them, so no response would be JSON or structured; use engine 'vllm', or "
    "remove it."
)
NOT_RESERVED = (
    "asks for GPUs that a replica does not reserve; leave it out, and set replicas to the number of engines, "
    "or tensor_parallel_size and pipeline_parallel_size to the GPUs of one."
)
WRAPPER = (
    "sampling: structured_outputs: json: it wraps a schema, as OpenAI's response_format does, and constrains "
    "nothing itself; give the schema alone, which is the object under 'schema'."
)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sorce": 1}, "sorce: there is no such field; remove it or correct its spelling."),
        ({"model": None}, "model: it must be text, but it is None."),
        (
            {"sampling": {"n": 0}},
            "sampling: n: the number of completions must be a whole number of at least 1, but it is 0.",
        ),
        (
            {"sampling": {"logprob_token_ids": [1]}},
            "sampling: logprob_token_ids: the dataset has no column for such log probabilities; remove it, "
            "or ask for logprobs or prompt_logprobs.",
        ),
        (
            {"sampling": {"logprobs": True}},
            "sampling: logprobs: it must be a whole number from 0 to 20, of the likeliest tokens beside "
            "each token, but it is True; engine_args={'max_logprobs': ...} allows more.",
        ),
        (
            {"engine": "vllm", "sampling": {"prompt_logprobs": 6}, "engine_args": {"max_logprobs": 5}},
            "sampling: prompt_logprobs: it must be a whole number from 0 to 5, of the likeliest tokens "
            "beside each token, but it is 6; engine_args={'max_logprobs': ...} allows more.",
        ),
        (
            {"engine": "vllm", "sampling": {"logprobs": -1}, "engine_args": {"max_logprobs": -1}},
            "sampling: logprobs: it must be a whole number from 0, of the likeliest tokens beside each "
            "token, but it is -1; engine_args={'max_logprobs': ...} allows more.",
        ),
        (
            {"engine": "ray_data_llm", "sampling": {"logprobs": 0}},
            "sampling: logprobs: engine 'ray_data_llm' keeps no log probabilities; use engine 'vllm', or "
            "remove it.",
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
            {"sampling": {"structured_outputs": {"json": '{"name": "a", "strict": true, "schema": {}}'}}},
            WRAPPER,
        ),
        (
            {"sampling": {"structured_outputs": {"json": {"type": "json_schema", "json_schema": {}}}}},
            WRAPPER,
        ),
        (
            {"sampling": {"structured_outputs": {"json": {"title": "Invoice"}}}},
            "sampling: structured_outputs: json: {'title': 'Invoice'} has no keyword that constrains a "
            "value; add 'type' and 'properties', or use json_object=True for any object.",
        ),
        (
            {"sampling": {"structured_outputs": {"choice": []}}},
            "sampling: structured_outputs has an empty list of choices; give at least one.",
        ),
        (
            {"sampling": {"structured_outputs": {"json": True}}},
            "sampling: structured_outputs: json: it must be a JSON schema, an object, but it is True.",
        ),
        (
            {"sampling": {"structured_outputs": {"json": "{type: object}"}}},
            "sampling: structured_outputs: json: the text is not JSON (Expecting property name enclosed in "
            "double quotes: line 1 column 2 (char 1)); give a JSON schema.",
        ),
        (
            {
                "engine": "ray_data_llm",
                "engine_args": {"reasoning_parser": "qwen3"},
                "response_format": "json_object",
            },
            REASONING,
        ),
        (
            {
                "engine": "ray_data_llm",
                "engine_args": {"structured_outputs_config": {"reasoning_parser": "qwen3"}},
                "sampling": {"structured_outputs": {"choice": ["a"]}},
            },
            REASONING,
        ),
        (
            {"engine": "vllm", "engine_args": {"reasoning_parser": "openai_gptoss"}},
            "engine_args: reasoning_parser 'openai_gptoss' can't split a text into reasoning and answer, "
            "only tell where the answer begins; serve the model with vLLM's server and use engine "
            "'ray_data_llm' with HttpRequestProcessorConfig.",
        ),
        (
            {"engine": "vllm", "sampling": {"thinking_token_budget": 8}},
            "sampling: thinking_token_budget: 8 needs the tags of the model's reasoning; name its parser, "
            "such as engine_args={'reasoning_parser': 'qwen3'}.",
        ),
        (
            {"sampling": {"n": True}},
            "sampling: n: the number of completions must be a whole number of at least 1, but it is True.",
        ),
        (
            {"source": ["gs://bucket/x"]},
            "source: 'gs://bucket/x' has the scheme 'gs'; use a local path or one of file://, s3://, "
            "https://, http://, hf://.",
        ),
        ({"source": [" "]}, "source: a path is empty; name a file, a folder or a glob."),
        ({"source": ["s3:///key"]}, "source: 's3:///key' names no bucket; write it as s3://bucket/key."),
        ({"destination": "/out/*"}, "destination: '/out/*' has a wildcard; name one folder."),
        (
            {"prompt_function": "not a path"},
            "prompt_function: 'not a path' is not an import path; write it as 'package.module:function'.",
        ),
        ({"prompt": ""}, "prompt: string should have at least 1 character, but it is ''."),
        (
            {"engine": "vllm", "processor": {"a": 1}},
            "processor: only engine 'ray_data_llm' takes it, not 'vllm'; put vLLM's arguments into "
            "engine_args.",
        ),
        ({"max_error_fraction": 1.5}, "max_error_fraction: it must be at most 1, but it is 1.5."),
        (
            {"source": []},
            "source: list should have at least 1 item after validation, not 0, but it is [].",
        ),
        ({"engine": "sglang"}, "engine: it must be 'vllm', 'ray_data_llm' or 'echo', but it is 'sglang'."),
        ({"schema_version": 1}, "schema_version: it must be 2, but it is 1."),
        (
            {"engine_args": {"model": "x"}},
            "engine_args: model: the operator has an argument for it; write model=..., and remove it here.",
        ),
        (
            {"engine_args": {"tensor_parallel_size": "two"}},
            "engine_args: tensor_parallel_size: it must be a whole number of at least 1, but it is 'two'.",
        ),
        ({"engine_args": {"data_parallel_size": 2}}, f"engine_args: data_parallel_size: 2 {NOT_RESERVED}"),
        ({"engine_args": {"nnodes": 2}}, f"engine_args: nnodes: 2 {NOT_RESERVED}"),
    ],
)
def test_an_error_is_one_sentence_with_field_value_and_remedy(fields: dict[str, Any], sentence: str) -> None:
    assert spec_error(**fields) == sentence


def test_many_errors_and_broken_json_are_one_sentence() -> None:
    assert spec_error(sampling={"n": 0}, sorce=1).endswith(" (and 1 more).")
    assert len(spec_error(engine="x" * 5000)) < 300
    with pytest.raises(SpecError, match="BatchInferenceSpec: invalid JSON"):
        parse(BatchInferenceSpec, b"{")
