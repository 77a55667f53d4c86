# SPDX-License-Identifier: Apache-2.0
"""A JSON schema in `response_format`: which are taken, and what the others are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.data import OUTPUT_COLUMNS
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.tasks.generate import output_type
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

INVOICE = {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]}
NODE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
        }
    },
    "$ref": "#/$defs/Node",
}


def of(*names: str) -> dict[str, Any]:
    """Return a schema with text properties of these names."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        (INVOICE, INVOICE),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": INVOICE}}, INVOICE),
        ({"type": "json_schema", "name": "x", "schema": INVOICE}, INVOICE),
        (NODE, NODE),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}}),
        ({**INVOICE, "additionalProperties": True}, {**INVOICE, "additionalProperties": True}),
        (of(*(f"p{number}" for number in range(500))), of(*(f"p{number}" for number in range(500)))),
        (of("__class__", "it's", 'say "x"', "a b"), of("__class__", "it's", 'say "x"', "a b")),
    ],
    ids=["plain", "of OpenAI", "of responses", "recursion", "no type", "additional", "500", "odd names"],
)
def test_response_format_takes_a_schema(given: dict[str, Any], schema: dict[str, Any]) -> None:
    made = spec(response_format=given)
    assert made.response_schema == schema
    assert made.sampling["structured_outputs"] == {"json": schema}
    assert made.needs_json
    assert BatchInferenceSpec.model_validate_json(made.model_dump_json()) == made


def test_openais_other_forms_mean_ours() -> None:
    assert spec(response_format={"type": "json_object"}).response_format == "json_object"
    assert spec(response_format={"type": "text"}).response_schema is None


def test_other_schemas_are_refused_in_a_sentence(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda given: spec_error(response_format=given))


def test_names_of_columns_follow_output_prefix() -> None:
    assert spec(response_format=of("text"), output_prefix="llm_").response_schema == of("text")
    assert spec(response_format=of("response"), response_column="answer").response_schema == of("response")
    error = spec_error(response_format=of("lm_x"), output_prefix="l", response_column="LLM_X")
    assert error.startswith(
        "response_format: property 'lm_x' would be the column 'llm_x', which has the text"
    )


def test_our_columns_are_those_of_a_dataset() -> None:
    assert (*output_type(True).names, "reused_from") == OUTPUT_COLUMNS


@pytest.mark.parametrize("form", [INVOICE, "users_models:Invoice"])
def test_another_constraint_beside_the_schema_is_refused(form: Any) -> None:
    choice = {"structured_outputs": {"choice": ["a"]}}
    assert spec_error(response_format=form, sampling=choice).startswith(
        "sampling: structured_outputs has a constraint, and response_format sets another one; keep one"
    )


def test_the_same_schema_twice_is_one() -> None:
    twice = {"structured_outputs": {"json": json.dumps(INVOICE), "disable_any_whitespace": True}, "seed": 1}
    made = spec(response_format=INVOICE, sampling=twice)
    assert made.sampling == {
        "seed": 1,
        "structured_outputs": {"json": INVOICE, "disable_any_whitespace": True},
    }


def test_a_server_that_takes_no_schema_is_named() -> None:
    server = {"config": "HttpRequestProcessorConfig", "url": "http://x"}
    assert spec_error(response_format=INVOICE, engine="ray_data_llm", processor=server).startswith(
        "response_format: it has no effect with another processor than vLLM's: it takes no schema from here"
    )


def test_a_model_is_known_once_it_is_imported() -> None:
    named = spec(response_format="users_models:Invoice")
    assert (named.response_model, named.response_schema, named.needs_json) == (
        "users_models:Invoice",
        None,
        True,
    )
    assert named.functions == {"response_format": "users_models:Invoice"}
    known = named.with_response_schema(INVOICE)
    assert known.response_schema == INVOICE
    with pytest.raises(ValueError, match=r"^response_format: property 'text' would be the column 'text'"):
        named.with_response_schema(of("text"))


def test_response_format_and_sampling_ask_the_same() -> None:
    """The digest of responses is one, whichever way the schema came; the dataset is another one."""
    written = spec(sampling={"structured_outputs": {"json": INVOICE}})
    given = spec(response_format=INVOICE)
    model = spec(response_format="m:M", response_format_digest="1").with_response_schema(INVOICE)
    assert written.response_digest == given.response_digest == model.response_digest
    named = spec(response_format="m:M", response_format_digest="1").fingerprint
    changed = spec(response_format="m:M", response_format_digest="2").fingerprint
    assert len({written.fingerprint, given.fingerprint, named, changed}) == 4
