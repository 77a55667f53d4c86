# SPDX-License-Identifier: Apache-2.0
"""Tools that can't be called are refused before an engine starts."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.preflight.step_jobs import asked_by_steps
from airflow_provider_raybatch.job.preflight.tool_check import check_calls, check_tools
from airflow_provider_raybatch.job.row import Request
from tests.support.approved import AssertSentences
from tests.support.specs import spec
from tests.support.tools import ADD, tool

CHAT = [Request(messages=[{"role": "user", "content": "x"}])]


BROKEN = tool("x", {"properties": {"a": {"type": "int"}}})
ELSEWHERE = tool("x", {"properties": {"a": {"$ref": "https://schemas.example/a.json"}}})
DRAFT = {"name": "draft", "prompt": "{row.a}"}


def test_broken_schema_is_named_with_its_tool_and_step(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: check_tools(spec(**fields)), PreflightError)


def test_unknown_tool_call_parser_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_compat_parsers, "tool_parsers", lambda: ["hermes", "mistral"])
    monkeypatch.setattr("airflow_provider_raybatch.job.engine.vllm_compat.installed_version", lambda: "0.29")
    job = {"engine": "vllm", "tools": [ADD]}
    for name, meant in {"HERMS": "did you mean 'hermes'?", "xyz": "it has hermes, mistral."}.items():
        with pytest.raises(PreflightError) as refused:
            check_tools(spec(**job, tool_call_parser=name))
        assert str(refused.value) == f"tool_call_parser: vLLM 0.29 has no parser {name!r}; {meant}"
    monkeypatch.setattr(vllm_compat_parsers, "tool_parsers", list)  # without vLLM
    assert check_tools(spec(**job, tool_call_parser="xyz")) is None


def test_chat_template_that_prints_no_tools_is_refused() -> None:
    job = spec(engine="vllm", model="acme/tiny", tools=[ADD], tool_choice="none")
    with pytest.raises(PreflightError, match="chat_template: that of 'acme/tiny' prints no tools"):
        check_calls(job, None, lambda chat, **_: "x", CHAT)

    def with_tools(chat: Any, tools: Any = "all") -> str:
        return f"{tools} x"

    assert check_calls(job, None, with_tools, CHAT) is None
    with pytest.raises(PreflightError, match="chat_template: that of 'acme/tiny' fails at the tools"):
        check_calls(job, None, lambda chat, tools="all": "" if tools else "x", CHAT)
    assert check_calls(spec(), None, with_tools, CHAT) is None
    step = {"prompt": "{row.a}", "tools": [ADD], "tool_choice": "none"}
    steps = spec(engine="vllm", model="m", steps=[{"name": "a", "prompt": "{row.a}"}, {"name": "b", **step}])
    asked = asked_by_steps(steps.step_specs(), CHAT)
    with pytest.raises(PreflightError, match="prints no tools"):
        check_calls(steps, None, lambda chat, **_: "x", asked)
    assert check_calls(steps, None, with_tools, asked) is None
