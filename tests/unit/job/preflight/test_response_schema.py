# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the schema of `response_format` is said under its name: field, value and remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import echo_args
from airflow_provider_raybatch.job.preflight.sampling_check import check_sampling
from tests.support.specs import spec

BAD_TYPE = {"type": "strin"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        BAD_TYPE,
        "the schema is not a JSON schema ($.properties.total.type: 'strin' is not a type of JSON; known are "
        "integer, number, boolean, string, array, null, object); correct it.",
    ),
    (
        {"type": "integer", "multipleOf": 0},
        "the schema is not a JSON schema ($.properties.total.multipleOf: 0 is less than or equal to the "
        "minimum of 0); correct it.",
    ),
    (
        {"$ref": "https://acme.example/total.json"},
        "the schema refers to 'https://acme.example/total.json', and no engine reads other documents; copy "
        "it into '$defs' and refer to '#/$defs/...'.",
    ),
    (
        {"$ref": "#/$defs/Total"},
        "the schema refers to '#/$defs/Total', which it lacks; define it there.",
    ),
]
UNCOMPILED: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "pattern": "(?<=a)b"}, "look-around"),
    ({"type": "object", "patternProperties": {"[": {"type": "string"}}}, "unclosed character class"),
]


def schema(total: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"total": total}}


@pytest.mark.parametrize(("total", "said"), REFUSED)
def test_a_wrong_schema_is_named_by_its_argument(total: dict[str, Any], said: str) -> None:
    with pytest.raises(PreflightError) as refused:
        echo_args.check_names(spec(response_format=schema(total)))
    assert str(refused.value) == f"response_format: {said}"
    sampling = {"structured_outputs": {"json": schema(total)}}
    with pytest.raises(PreflightError) as refused:
        echo_args.check_names(spec(sampling=sampling))
    assert str(refused.value) == f"sampling: structured_outputs: json{said.removeprefix('the schema')}"


def test_a_wrong_schema_of_a_model_is_named_by_its_argument() -> None:
    made = spec(response_format="models:Invoice").with_response_schema(schema(BAD_TYPE))
    with pytest.raises(PreflightError, match=r"^response_format: the schema is not a JSON schema"):
        echo_args.check_names(made)


@pytest.mark.slow
@pytest.mark.parametrize(("total", "said"), [*REFUSED, *UNCOMPILED])
def test_vllm_refuses_a_schema_under_the_same_name(total: dict[str, Any], said: str) -> None:
    pytest.importorskip("vllm")
    job = spec(engine="vllm", model="some/model", response_format=schema(total))
    with pytest.raises(PreflightError) as refused:
        check_sampling(job)
    sentence = str(refused.value)
    assert sentence.startswith("response_format: the schema ")
    assert said in sentence
    if (total, said) in UNCOMPILED:
        assert f"{json.dumps(schema(total))} does not compile" in sentence
        assert sentence.endswith("; write it without what this names.")
