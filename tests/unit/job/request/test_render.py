# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.request.render import load_function, needed_columns, render_all
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.approved import AssertSentences
from tests.support.specs import spec


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a user's module and make it importable."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def rendered(row: Any, **fields: Any) -> Request | RowFailure:
    (made,) = render_all(task_of(spec(**fields)).renderer(), [row])
    return made


def test_a_conversation_of_sharegpt_is_a_chat() -> None:
    """As JSONL, and as Parquet, have it; its other fields are left out."""
    conversation = [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "Hi", "weight": None},
        {"from": "gpt", "value": "Hello.", "markdown": "x"},
        {"from": "user", "value": "Why?"},
    ]
    chat = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Why?"},
    ]
    for value in (conversation, json.dumps(conversation)):
        made = rendered({"conversations": value}, messages_column="conversations")
        assert made == rendered({"conversations": chat}, messages_column="conversations")


def failed(row: Any, **fields: Any) -> str:
    made = rendered(row, **fields)
    assert isinstance(made, RowFailure)
    return f"{made.step}: {made.reason}"


TEMPLATE = {"prompt": 'Say {row.text} as {"json": {}}', "system_prompt": "Be {row.tone}"}
CHAT = {"messages_column": "chat", "system_prompt": "Be brief"}


@pytest.mark.parametrize(
    ("prompt", "row", "request_made"),
    [
        (
            TEMPLATE,
            {"text": "{row.tone}", "tone": "kind"},
            Request([
                {"role": "system", "content": "Be kind"},
                {"role": "user", "content": 'Say {row.tone} as {"json": {}}'},
            ]),
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "{row.q}"},
                    {"role": "assistant", "content": "Sure: "},
                ]
            },
            {"q": "why?"},
            Request([{"role": "user", "content": "why?"}, {"role": "assistant", "content": "Sure: "}]),
        ),
        ({"prompt_column": "p"}, {"p": "raw"}, Request(prompt="raw")),
    ],
    ids=["template", "messages", "raw"],
)
def test_prompt_messages_and_prompt_column_make_requests(
    prompt: dict[str, Any], row: dict[str, Any], request_made: Request
) -> None:
    made, bad = render_all(task_of(spec(**prompt)).renderer(), [row, {}])
    assert made == request_made
    assert isinstance(bad, RowFailure)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_messages_column_is_a_list_or_its_json(as_json: bool) -> None:
    chat = [
        {"role": "user", "content": "hi", "name": None},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
    ]
    made = rendered({"chat": json.dumps(chat) if as_json else chat}, **CHAT)
    assert made == Request(
        messages=[
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
        ]
    )


def test_a_chat_of_parts_has_no_fields_that_arrow_added() -> None:
    text = {"type": "text", "text": "look", "refusal": None}
    refusal = {"type": "refusal", "text": None, "refusal": "no"}
    made = rendered({"chat": [{"role": "user", "content": [text, refusal]}]}, **CHAT)
    assert isinstance(made, Request)
    assert made.messages is not None
    assert made.messages[1]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "refusal", "refusal": "no"},
    ]


def test_non_text_parts_fail_their_row(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda content: failed({"chat": [{"role": "user", "content": content}]}, **CHAT))


def test_a_server_of_ones_own_may_take_images() -> None:
    image = [{"type": "image_url", "image_url": {"url": "u"}}]
    engine = {"engine": "ray_data_llm", "processor": {"config": "HttpRequestProcessorConfig"}}
    made = rendered({"chat": [{"role": "user", "content": image}]}, **CHAT, **engine)
    assert isinstance(made, Request)


def test_row_that_makes_no_request_has_a_reason(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda row, prompt: failed(row, **prompt))
    bad = BadRow("the line is not JSON", "{")
    assert failed(bad, **TEMPLATE) == "read: the line is not JSON"


def test_an_input_column_never_hides_behind_an_output_column() -> None:
    # JSONL has no header: a later row may have a column that preflight did not see.
    row = {"text": "a", "response": "mine"}
    prompt = {"prompt": "{row.text}"}
    assert failed(row, **prompt) == (
        "template: the row has a column 'response', which is also an output column; set output_prefix"
    )
    prefixed = {"output_prefix": "llm_"}
    assert isinstance(rendered(row, **prompt, **prefixed), Request)
    assert "llm_response" in failed({**row, "llm_response": 1}, **prompt, **prefixed)


class TestSampling:
    PROMPT: ClassVar[dict[str, Any]] = {"prompt_column": "p"}

    @pytest.mark.parametrize(
        ("value", "sampling"),
        [
            (None, {}),
            ("", {}),
            ('{"temperature": 1}', {"temperature": 1}),
            ({"temperature": 1, "seed": None}, {"temperature": 1}),
            ([("temperature", 1.0), ("seed", None)], {"temperature": 1.0}),  # a map in Parquet
            ({"temperature": Decimal("0.50"), "seed": Decimal(7)}, {"temperature": 0.5, "seed": 7}),
        ],
    )
    def test_sampling_column_overrides_row_by_row(self, value: Any, sampling: dict[str, Any]) -> None:
        made = rendered({"p": "x", "s": value}, **self.PROMPT, sampling_column="s")
        assert isinstance(made, Request)
        assert made.sampling == sampling
        json.dumps(made.sampling)

    def test_junk_is_a_failure_of_its_row(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda value: failed({"p": "x", "s": value}, **self.PROMPT, sampling_column="s"))


RETURNED = "what user_prompts:make returned"


class TestFunction:
    PROMPT: ClassVar[dict[str, Any]] = {
        "prompt_function": "user_prompts:make",
        "system_prompt": "Be {row.tone}",
    }
    SYSTEM: ClassVar[dict[str, Any]] = {"role": "system", "content": "Be kind"}
    ROW: ClassVar[dict[str, Any]] = {"x": "hi", "tone": "kind"}

    @pytest.mark.parametrize(
        ("body", "request_made"),
        [
            ("return row['x']", Request(messages=[SYSTEM, {"role": "user", "content": "hi"}])),
            (
                "return [{'role': 'user', 'content': row['x']}]",
                Request(messages=[SYSTEM, {"role": "user", "content": "hi"}]),
            ),
            (
                "return {'messages': [{'role': 'user', 'content': 'a'}], 'sampling': {'n': 2, 'seed': None}}",
                Request(messages=[SYSTEM, {"role": "user", "content": "a"}], sampling={"n": 2}),
            ),
            ("return {'prompt': 'raw', 'sampling': None}", Request(prompt="raw")),
        ],
    )
    def test_what_it_may_return(self, module: Any, body: str, request_made: Request) -> None:
        module("user_prompts", f"def make(row):\n    {body}\n")
        assert rendered(self.ROW, **self.PROMPT) == request_made

    def test_what_it_may_not_return(self, module: Any, assert_sentences: AssertSentences) -> None:
        def said(body: str) -> str:
            module("user_prompts", f"def make(row):\n    {body}\n")
            return failed(self.ROW, **self.PROMPT)

        assert_sentences(said)

    def test_prompt_function_cannot_change_the_input(self, module: Any) -> None:
        body = "chat = row.pop('chat')\n    chat.append(chat[0])\n    return chat"
        module("user_prompts", f"def make(row):\n    {body}\n")
        message = {"role": "user", "content": "a"}
        row = {**self.ROW, "chat": [message]}
        made = rendered(row, **self.PROMPT)
        assert isinstance(made, Request)
        assert made.messages == [self.SYSTEM, message, message]
        assert row == {**self.ROW, "chat": [message]}

    @pytest.mark.parametrize(
        "body",
        [
            "return '\\ud800'",
            "return [{'role': 'user', 'content': 'a', 1: 2}]",
            "s = {}\n    s['stop'] = s\n    return {'prompt': 'a', 'sampling': s}",
        ],
    )
    def test_request_that_is_not_json_fails_its_row(self, module: Any, body: str) -> None:
        module("user_prompts", f"def make(row):\n    {body}\n")
        assert failed(self.ROW, **self.PROMPT).startswith("template: the request is not JSON (")

    def test_unavailable_function_is_refused_before_the_start(
        self, module: Any, assert_sentences: AssertSentences
    ) -> None:
        def refused(source: str) -> None:
            module("user_prompts", source)
            load_function("user_prompts:make")

        assert_sentences(refused, PreflightError)


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        (TEMPLATE, ["text", "tone"]),
        ({"prompt": "constant", "sampling_column": "s"}, ["s"]),
        ({**CHAT, "sampling_column": "s"}, ["chat", "s"]),
        ({"prompt_column": "p", "sampling_column": "p"}, ["p"]),
        (TestFunction.PROMPT, None),
    ],
)
def test_which_columns_become_python_values(fields: dict[str, Any], columns: list[str] | None) -> None:
    assert needed_columns(spec(**fields)) == columns


def test_long_reasons_are_cut() -> None:
    assert len(RowFailure.of("engine", ValueError("x" * 5000)).reason) == 1000


ADAPTERS = {"adapters": {"acme": "/adapters/acme", "7": "/adapters/7"}, "adapter_column": "customer"}


@pytest.mark.parametrize(
    ("value", "adapter"), [("acme", "acme"), (7, "7"), ("7", "7"), (None, None), ("", None)]
)
def test_adapter_column_names_one_of_the_adapters(value: Any, adapter: str | None) -> None:
    made = rendered({"text": "x", "customer": value}, prompt="{row.text}", **ADAPTERS)
    assert isinstance(made, Request)
    assert made.adapter == adapter


def test_row_can_t_name_another_adapter() -> None:
    """Rows don't choose what the cluster reads."""
    fields = {"prompt": "{row.text}", **ADAPTERS}
    assert failed({"text": "x", "customer": "/etc"}, **fields) == (
        "template: column 'customer' names the adapter '/etc', which is not among adapters; add it there, or "
        "leave the value empty for the model alone"
    )
    assert "names the adapter" in failed({"text": "x", "customer": ["acme"]}, **fields)
    assert "is binary" in failed({"text": "x", "customer": b"acme"}, **fields)
    assert needed_columns(spec(**fields)) == ["text", "customer"]


def test_adapter_of_the_job_answers_each_row() -> None:
    made = rendered({"text": "x"}, prompt="{row.text}", adapter="acme/lora@v2", sampling_column="s")
    assert isinstance(made, Request)
    assert json.loads(made.as_json()) == {
        "messages": [{"role": "user", "content": "x"}],
        "adapter": "acme/lora",
    }
