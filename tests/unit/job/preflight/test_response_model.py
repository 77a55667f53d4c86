# SPDX-License-Identifier: Apache-2.0
"""A Pydantic model in `response_format`: imported on the cluster, or refused in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.response_model import schema_of_model, with_model
from tests.support.approved import AssertSentences
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec
from tests.support.whole_job import without_cluster

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
