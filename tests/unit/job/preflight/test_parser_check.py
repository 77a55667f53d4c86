# SPDX-License-Identifier: Apache-2.0
"""Tools that can't be called, and Pydantic models without columns, are refused before an engine starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.preflight.input_check import SampledRows
from airflow_provider_raybatch.job.preflight.parser_check import (
    check_calls,
    check_tools,
    schema_of_model,
    with_model,
)
from airflow_provider_raybatch.job.row import Request
from tests.support.approved import AssertSentences
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec
from tests.support.tools import ADD, tool
from tests.support.whole_job import without_cluster

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


def check(job: Any, text: Callable[..., str], requests: Sequence[Request] = CHAT) -> None:
    """Check the calls of a model whose chats have this text."""
    loaded: Any = SimpleNamespace(
        spec=job, tokenizer=None, chats=SimpleNamespace(text=text), requests=requests
    )
    check_calls(loaded)


def test_chat_template_that_prints_no_tools_is_refused() -> None:
    job = spec(engine="vllm", model="acme/tiny", tools=[ADD], tool_choice="none")
    with pytest.raises(PreflightError, match="chat_template: that of 'acme/tiny' prints no tools"):
        check(job, lambda chat, **_: "x")

    def with_tools(chat: Any, tools: Any = "all") -> str:
        return f"{tools} x"

    check(job, with_tools)
    with pytest.raises(PreflightError, match="chat_template: that of 'acme/tiny' fails at the tools"):
        check(job, lambda chat, tools="all": "" if tools else "x")
    check(spec(), with_tools)
    step = {"prompt": "{row.a}", "tools": [ADD], "tool_choice": "none"}
    steps = spec(engine="vllm", model="m", steps=[{"name": "a", "prompt": "{row.a}"}, {"name": "b", **step}])
    asked = SampledRows(CHAT, [], 1).of_all_steps(steps).requests
    with pytest.raises(PreflightError, match="prints no tools"):
        check(steps, lambda chat, **_: "x", asked)
    check(steps, with_tools, asked)


MODULE = "users_models"
SOURCE = """
from enum import Enum
from typing import Any, Callable, Optional
from pydantic import BaseModel, RootModel

class State(Enum):
    OPEN = "open"
    PAID = "paid"

class Line(BaseModel):
    sku: str
    amount: int

class Invoice(BaseModel):
    number: int
    state: State
    lines: list[Line]
    note: Optional[str] = None

class Plain:
    number: int

class Text(BaseModel):
    text: str

class Items(RootModel[list[int]]):
    pass

class Code(BaseModel):
    code: Callable[[], None]

class Nothing(BaseModel):
    pass

FUNCTION = len
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / f"{MODULE}.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop(MODULE, None)


def refused(path: str) -> str:
    with pytest.raises(PreflightError) as caught:
        with_model(spec(response_format=path), schema_of_model)
    text = str(caught.value)
    assert text.startswith("response_format: ")
    assert "\n" not in text
    return text.removeprefix("response_format: ")


def test_other_classes_are_refused_in_a_sentence(module: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda name: refused(f"{MODULE}:{name}"))
    assert refused(f"{MODULE}:Code").startswith("'users_models:Code' has no JSON schema (")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import airflow_that_is_not_there",
            "ModuleNotFoundError: No module named 'airflow_that_is_not_there'",
        ),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("class Invoice(", "SyntaxError: "),
    ],
)
def test_a_module_that_fails_is_one_sentence(module: Path, source: str, reason: str) -> None:
    module.write_text(source)
    text = refused(f"{MODULE}:Invoice")
    assert text.startswith(f"'users_models:Invoice' can't be imported on the cluster ({reason}")
    assert text.endswith("add what it needs to runtime_env, and keep it out of the DAG file.")


def test_model_in_response_format_gives_typed_columns(module: Path, tmp_path: Path) -> None:
    place = EchoPlace(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        rows = [{"text": f"company {number}"} for number in range(4)]
        manifest = place.job(0, rows, response_format=f"{MODULE}:Invoice", response_format_digest="1")
        first = place.rows(manifest)[0]
        assert isinstance(first["lines"][0]["amount"], int)
        assert first["state"] in ("open", "paid")
        file = manifest.uri.removeprefix("file://") + "/" + manifest.files[0].path
        assert "lines: list<element: struct<sku: string, amount: int64>>" in str(pq.read_schema(file))
        again = place.job(0, rows, response_format=f"{MODULE}:Invoice", response_format_digest="1")
    assert again.uri == manifest.uri
