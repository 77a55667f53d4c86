# SPDX-License-Identifier: Apache-2.0
"""Arguments in another form: as text, as a generator, by the names and the spelling of other systems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.operators.arguments import build_spec
from tests.support.approved import AssertSentences

GOOD: dict[str, Any] = {"source": "/in", "prompt": "Say {row.x}", "model": "m", "destination": "/out"}


def spec(**arguments: Any) -> Any:
    return build_spec({**GOOD, **arguments})


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
    with pytest.raises(SpecError, match=r"^response_format: .* is OpenAI's form without a schema in it; put"):
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
