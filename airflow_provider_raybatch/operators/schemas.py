# SPDX-License-Identifier: Apache-2.0
"""Refuses a broken JSON schema before a job is submitted.

The cluster checks it again, with what it refers to and with the engine's grammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.response_schema import schema_problem
from airflow_provider_raybatch.contract.arguments.sampling import schema_of
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec


def check_schemas(spec: BatchInferenceSpec, where: str = "") -> None:
    """Check the JSON schemas of tools and of responses.

    :param where: the start of the sentence.
    :raises SpecError: one is none in any draft that the cluster knows.
    """
    for name, schema in _schemas(spec):
        if schema and "$schema" not in schema and (why := _problem(schema)):
            raise SpecError(f"{where}{name} is not a JSON schema ({why}); correct it.")


def _schemas(spec: BatchInferenceSpec) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for number, tool in enumerate(spec.tools or ()):
        yield f"tools: {number}: function: parameters", tool["function"].get("parameters")
    argument = "sampling: structured_outputs: json"
    name = argument if spec.response_schema is None else "response_format: the schema"
    yield name, schema_of(spec.sampling.get("structured_outputs"))


def _problem(schema: Mapping[str, Any]) -> str:
    """What is wrong by the newest draft; empty if one draft takes it."""
    from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator, SchemaError  # Airflow's

    first = ""
    for draft in (Draft202012Validator, Draft7Validator, Draft4Validator):
        try:
            # Without formats: Python does not know all patterns that grammars do.
            draft.check_schema(schema, format_checker=None)
        except SchemaError as error:
            first = first or schema_problem(error)
        else:
            return ""
    return first
