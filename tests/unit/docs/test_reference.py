# SPDX-License-Identifier: Apache-2.0
"""The reference matches the code: generated regions are current, and no name is missing."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.exceptions import airflow_exception
from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.operators.base import RayOperator
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor

from ...support.documents import DOCS, first_column
from ...support.programs import program

REFERENCE = DOCS / "reference"
OPERATORS = REFERENCE / "operators.md"

GENERATOR = program("docs/generate.py", "generate_docs")


@pytest.mark.parametrize("path", sorted(GENERATOR.pages()), ids=lambda path: path.name)
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == GENERATOR.pages()[path], "run python docs/generate.py"


def test_the_schema_accepts_a_spec_and_refuses_a_misspelt_one() -> None:
    schema = json.loads((REFERENCE / "schemas/batch_inference_spec.json").read_text(encoding="utf-8"))
    spec = BatchInferenceSpec.model_validate({
        "source": ["s3://lake/in/"],
        "prompt": "{row.a}",
        "model": "m",
        "destination": "s3://lake/out",
    })
    document = spec.model_dump(mode="json")
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError, match="sorce"):
        jsonschema.validate({**document, "sorce": {}}, schema)


def own_parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in {"self", "kwargs"}]


@pytest.mark.parametrize("kind", [RayOperator, RayBatchInferenceOperator, RayJobOperator, RayJobSensor])
def test_every_argument_is_in_its_table(kind: type) -> None:
    listed = [one.name for one in GENERATOR.arguments(kind.__name__)]
    assert sorted(listed) == sorted(own_parameters(kind))
    assert set(listed) <= first_column(OPERATORS)


@pytest.mark.parametrize("kind", [RayBatchInferenceOperator, RayJobOperator, RayJobSensor])
def test_template_fields_are_marked(kind: type[Any]) -> None:
    own, shared = GENERATOR.arguments(kind.__name__), GENERATOR.arguments("RayOperator")
    marked = {one.name for one in [*own, *shared] if one.templated}
    assert set(kind.template_fields) <= marked
    assert {one.name for one in own if one.templated} <= set(kind.template_fields)


def test_every_failure_class_is_documented() -> None:
    text = (REFERENCE / "failures.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (yes|no) \|$", text, re.MULTILINE))
    assert documented == {one.value: "yes" if one.retryable else "no" for one in FailureClass}


def test_exceptions_are_those_of_the_classes() -> None:
    text = (REFERENCE / "failures.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(RayBatch\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    kinds = {one.value: type(airflow_exception(RaybatchError("x", one))).__name__ for one in FailureClass}
    assert set(rows) == set(kinds.values())
    for name in ("RayBatchLostException", "RayBatchUnavailableException"):
        named = set(re.findall(r"`(\w+)`", rows[name]))
        assert named == {one for one, kind in kinds.items() if kind == name}


def test_every_field_of_the_connection_is_documented() -> None:
    page = REFERENCE / "connection.md"
    (kind,) = get_provider_info()["connection-types"]
    assert set(kind["conn-fields"]) <= first_column(page)
    labels = kind["ui-field-behaviour"]["relabeling"].values()
    text = page.read_text(encoding="utf-8")
    assert [label for label in labels if f"| {label} |" not in text] == []


def test_every_key_of_the_result_is_documented() -> None:
    from airflow_provider_raybatch.contract.manifest import Summary
    from airflow_provider_raybatch.operators.handover import result_of

    summary = Summary.model_validate({
        "uri": "s3://lake/a/data/c1", "manifest_uri": "s3://lake/a/manifests/c1.json", "format": "parquet",
        "rows": 1, "errors": 0, "tokens": {},
    })  # fmt: skip
    assert set(result_of(summary, "id", None)) <= first_column(OPERATORS)


def test_every_output_column_is_documented() -> None:
    columns = first_column(REFERENCE / "manifest.md")
    assert {"response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"} <= columns
    assert {"completions", "reused_from"} <= columns
