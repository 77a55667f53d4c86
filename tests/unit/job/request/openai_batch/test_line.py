# SPDX-License-Identifier: Apache-2.0
"""What a line of an OpenAI batch file may ask, and in which words the others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.openai_batch import COMPLETIONS, EMBEDDINGS
from airflow_provider_raybatch.job.output.openai_batch.bodies import chat_completion
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.openai_batch.parameters import LineError
from airflow_provider_raybatch.job.request.render import renderer
from airflow_provider_raybatch.job.row import IMAGE_PART, Request
from tests.support.approved import AssertSentences
from tests.support.openai_lines import chat, completion, line
from tests.support.specs import spec as spec_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def request(row: dict[str, Any], **fields: Any) -> Request:
    body = row.get("body")
    row = {**row, "body": None if body is None else json.dumps(body)}
    return request_of(row, spec_of(format="openai_batch", prompt=None, **fields))


def refused(row: dict[str, Any], **fields: Any) -> tuple[str, str, str]:
    """Return field, code and sentence of the error."""
    with pytest.raises(LineError) as caught:
        request(row, **fields)
    return caught.value.param, caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "seed": -3}, {"temperature": 0.5, "top_p": 0.9, "seed": -3}),
        ({"max_tokens": 7.0}, {"max_tokens": 7}),
        ({"max_completion_tokens": 9, "max_tokens": 5}, {"max_tokens": 9}),
        ({"stop": "end", "n": 3}, {"stop": ["end"], "n": 3}),
        ({"presence_penalty": -2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"logit_bias": {"50": -100}}, {"logit_bias": {"50": -100}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False}, {}),
        ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"structured_outputs": {"json": SCHEMA}},
        ),
        ({"stream": False, "user": "me", "store": True, "metadata": {"a": "b"}, "tools": None}, {}),
        ({"tools": [], "tool_choice": "none", "modalities": ["text"], "chat_template": None}, {}),
        ({"top_k": 5, "min_p": 0.1, "min_tokens": 2}, {"top_k": 5, "min_p": 0.1, "min_tokens": 2}),
    ],
)  # fmt: skip
def test_parameters_of_a_chat_become_sampling(given: dict[str, Any], sampling: dict[str, Any]) -> None:
    made = request(line("a", chat(**given)))
    assert made.messages == [{"role": "user", "content": "hello there"}]
    assert (dict(made.sampling), made.prompt, made.adapter) == (sampling, None, None)


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({}, {"max_tokens": 16}),
        ({"max_tokens": 3, "best_of": 2, "n": 2}, {"max_tokens": 3, "n": 2}),
        ({"logprobs": 5, "echo": False, "suffix": None}, {"logprobs": 5, "max_tokens": 16}),
    ],
)
def test_raw_prompts_have_parameters_too(given: dict[str, Any], sampling: dict[str, Any]) -> None:
    for prompt in ("tell me", ["tell me"]):
        made = request(line("a", completion(prompt, **given), COMPLETIONS))
        assert (made.prompt, made.messages, dict(made.sampling)) == ("tell me", None, sampling)
    of_job = request(line("a", completion(), COMPLETIONS), sampling={"max_tokens": 99})
    assert "max_tokens" not in of_job.sampling


def test_wrong_values_name_field_and_code(assert_sentences: AssertSentences) -> None:
    def said(given: dict[str, Any]) -> str:
        param, code, why = refused(line("a", chat(**given)))
        assert why.startswith(f"{param}: ")
        assert len(why) < 400
        return f"{code}: {why}"

    assert_sentences(said)


@pytest.mark.parametrize(
    "name",
    [
        "chat_template", "chat_template_kwargs", "add_generation_prompt", "documents", "mm_processor_kwargs",
        "media_io_kwargs", "lora_request", "adapter", "guided_json", "structured_outputs", "extra_body",
        "prompt_logprobs", "vllm_xargs", "kv_transfer_params", "functions", "audio", "prediction",
        "reasoning_effort", "web_search_options", "cache_salt", "priority", "bad_words", "anything",
    ],
)  # fmt: skip
def test_what_is_not_on_the_list_is_refused(name: str) -> None:
    value = {"x": "file:///etc/passwd"}
    assert refused(line("a", chat(**{name: value})))[:2] == (name, "unsupported_parameter")
    assert refused(line("a", completion(**{name: value}), COMPLETIONS))[:2] == (name, "unsupported_parameter")
    embed = line("a", {"model": "echo", "input": "x", name: value}, EMBEDDINGS)
    assert refused(embed, model_task="embed")[:2] == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://x"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "thinking", "thinking": "x"},
        "text",
    ],
)
def test_content_other_than_text_and_images_is_refused(part: Any) -> None:
    param, code, _ = refused(line("a", chat([{"type": "text", "text": "look"}, part])))
    assert (param, code) == ("messages.0.content.1.type", "unsupported_parameter")


@pytest.mark.parametrize("role", ["user", "system"])
def test_image_of_a_user_is_in_its_line(role: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    messages = [{"role": role, "content": [{"type": "text", "text": "look"}, image]}]
    asked = line("a", chat(messages=messages))
    if role == "system":
        assert refused(asked)[:2] == ("messages.0.content", "unsupported_parameter")
        return
    made = request(asked)
    assert made.messages == [
        {"role": "user", "content": [{"type": "text", "text": "look"}, dict(IMAGE_PART)]}
    ]
    assert [image.content for image in made.images] == [b"\0\0\0"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://a.com/a.png",
        "file:///etc/passwd",
        "s3://b/a.png",
        "/etc/passwd",
    ],
)
def test_line_has_no_reference_to_an_image(url: str) -> None:
    for given in ({"url": url}, url):
        param, code, why = refused(line("a", chat([{"type": "image_url", "image_url": given}])))
        assert (param, code) == ("messages.0.content.0.image_url.url", "unsupported_parameter")
        assert why.endswith("a batch reads no address; write the image itself as data:image/png;base64,...")


def test_broken_image_of_a_line_is_refused() -> None:
    for given in ({"url": "data:image/png;base64,%"}, {"url": "data:text/plain,a"}, {}, 5):
        found = refused(line("a", chat([{"type": "image_url", "image_url": given}])))
        assert found[:2] == ("messages.0.content.0.image_url.url", "invalid_value")
    cached = {"engine": "vllm", "engine_args": {"mm_processor_cache_gb": 4}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert "mm_processor_cache_gb" in refused(line("a", chat([image])), **cached)[2]


def test_fields_of_messages_are_those_of_templates() -> None:
    messages = [
        {"role": "developer", "content": "be short", "name": "d"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    assert request(line("a", chat(messages=messages))).messages == [
        {"role": "system", "content": "be short", "name": "d"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    for strange in ({"role": "user", "reasoning_content": "y"}, {"role": "assistant", "audio": {"id": "a"}}):
        name = list(strange)[-1]
        assert refused(line("a", chat(messages=[{"content": "x", **strange}])))[0] == f"messages.0.{name}"


ANSWERED = {"completions": [{"text": "4", "finish_reason": "stop", "reasoning": "2 and 2"}]}
COUNTS = {"input_tokens": 1, "output_tokens": 1, "cached_tokens": 0}
OF_OPENAI = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
CITED = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        ({**OF_OPENAI, "content": "4"}, {"content": "4"}),
        ({"content": "4", "refusal": None, "annotations": [CITED]}, {"content": "4"}),
        ({"content": None, "refusal": "I can't", "annotations": []}, {"content": "I can't"}),
        ({**OF_OPENAI, "content": None, "tool_calls": [CALL]}, {"tool_calls": [CALL]}),
        # vLLM's, the second one cut off while it thought; its older versions wrote both names.
        ({**OF_OPENAI, "content": "4", "reasoning": "2 and 2"}, {"content": "4", "reasoning": "2 and 2"}),
        ({"content": None, "tool_calls": [], "reasoning": "2 and"}, {"content": "", "reasoning": "2 and"}),
        (
            {"content": "4", "reasoning": "2 and 2", "reasoning_content": "2 and 2", "tool_calls": []},
            {"content": "4", "reasoning": "2 and 2"},
        ),
        (
            chat_completion("a", 0, chat(), {**ANSWERED, **COUNTS})["choices"][0]["message"],
            {"content": "4", "reasoning": "2 and 2"},
        ),
    ],
)
def test_message_of_an_answer_is_asked_again(answer: dict[str, Any], asked: dict[str, Any]) -> None:
    messages = [{"role": "assistant", **answer}, {"role": "user", "content": "why?"}]
    assert request(line("a", chat(messages=messages))).messages == [
        {"role": "assistant", **asked},
        {"role": "user", "content": "why?"},
    ]
    for name in ("reasoning", "reasoning_content"):
        wrong = [{"role": "assistant", "content": "x", name: 4}]
        assert refused(line("a", chat(messages=wrong)))[:2] == (f"messages.0.{name}", "invalid_value")


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_lines_need_all_four_fields(name: str) -> None:
    found = refused({**line("a", chat()), name: None})
    assert found[:2] == (name, "missing_required_parameter")


def test_lines_ask_endpoints_of_their_task() -> None:
    assert refused(line("a", chat(), method="GET"))[:2] == ("method", "invalid_value")
    for url in ("/v1/responses", EMBEDDINGS, "/V1/chat/completions", "http://x/v1/chat/completions"):
        assert refused(line("a", chat(), url))[:2] == ("url", "invalid_url")
    assert refused(line("a", chat()), model_task="embed")[:2] == ("url", "invalid_url")
    for body in ([], "x", 3):
        assert refused(line("a", body))[:2] == ("body", "invalid_value")


@pytest.mark.parametrize("prompt", [None, "", ["a", "b"], [1, 2], [[1]], [], {"a": 1}])
def test_raw_prompts_are_one_text(prompt: Any) -> None:
    assert refused(line("a", completion(prompt), COMPLETIONS))[0] == "prompt"
    embed = line("a", {"model": "echo", "input": prompt}, EMBEDDINGS)
    assert refused(embed, model_task="embed")[0] == "input"


def test_completions_have_limits_of_their_own() -> None:
    for given in ({"echo": True}, {"best_of": 2}, {"suffix": "x"}, {"messages": []}, {"logprobs": True}):
        assert refused(line("a", completion(**given), COMPLETIONS))[0] == next(iter(given))


def test_served_model_name_stands_for_the_model() -> None:
    assert request(line("a", {**chat(), "model": "gpt-4o-mini"}), served_model_name="gpt-4o-mini").messages
    message = refused(line("a", chat()), served_model_name="gpt-4o-mini")[2]
    assert message == "model: this batch is answered by 'gpt-4o-mini', not 'echo'"


def test_texts_for_vectors_are_not_blank() -> None:
    def embed(**fields: Any) -> dict[str, Any]:
        return line("a", {"model": "echo", "input": "some text", **fields}, EMBEDDINGS)

    for fields in ({}, {"encoding_format": "base64", "user": "me"}, {"input": ["some text"]}):
        assert request(embed(**fields), model_task="embed") == Request(prompt="some text")
    assert request(embed(dimensions=8), model_task="embed", pooling={"dimensions": 8}).prompt
    assert refused(embed(dimensions=8), model_task="embed")[:2] == ("dimensions", "invalid_value")
    assert refused(embed(encoding_format="int8"), model_task="embed")[0] == "encoding_format"
    assert refused(embed(input=" \n"), model_task="embed")[0] == "input"


def test_lists_of_texts_need_answers_in_lines() -> None:
    def embed(texts: Any) -> dict[str, Any]:
        return line("a", {"model": "echo", "input": texts}, EMBEDDINGS)

    answers = {"model_task": "embed", "destination_format": "openai_batch"}
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert request(embed(["a", "b"]), **answers).messages == messages
    assert refused(embed(["a", "b"]), model_task="embed")[:2] == ("input", "unsupported_parameter")
    for texts in (["a", " "], ["a", 1], ["a"] * 2049, [[1, 2], [3]]):
        assert refused(embed(texts), **answers)[0] == "input"


def test_tools_are_those_of_the_job() -> None:
    of_job = {"tools": TOOLS, "tool_choice": "required"}
    given = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": None}}]
    ok = line("a", chat(tools=given, tool_choice="required", parallel_tool_calls=True))
    assert request(ok, **of_job).messages
    others = [{"type": "function", "function": {"name": "sub"}}]
    for tools in (None, [], others, [*TOOLS, *others], "add", [3], [{}]):
        assert refused(line("a", chat(tools=tools)), **of_job)[0] == "tools"
    for choice in ("auto", None, "add", "sub", {"type": "function", "function": {"name": "add"}}):
        assert refused(line("a", chat(tools=TOOLS, tool_choice=choice)), **of_job)[0] == "tool_choice"
    structured = chat(tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
    assert refused(line("a", structured), **of_job)[0] == "response_format"
    assert refused(line("a", completion(), COMPLETIONS), **of_job)[0] == "url"


def test_adapter_of_the_job_answers_all_lines() -> None:
    render = renderer(spec_of(format="openai_batch", prompt=None, adapter="/adapters/acme"))
    row = {**line("a", chat()), "body": json.dumps(chat())}
    assert render(row).adapter == "/adapters/acme"
