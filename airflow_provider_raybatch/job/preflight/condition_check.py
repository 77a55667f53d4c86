# SPDX-License-Identifier: Apache-2.0
"""Refuses conditions that no row can fulfil: a comparison holds only between values of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import LIST_OPERATORS, NULL_OPERATORS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.chunk_rows import partitions
from airflow_provider_raybatch.job.input.plain_types import plain_type
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.steps.columns import schema_of
from airflow_provider_raybatch.job.tasks.registry import task_of

_TEXT, _NUMBER, _BOOLEAN, _NULL = "text", "a number", "true or false", "null"


def check_conditions(spec: BatchInferenceSpec, source: Source) -> None:
    """Compare the values of the steps' conditions with the types of their columns.

    Without this check such a step would ask no row, and the dataset would have nulls without a word.

    :raises PreflightError: no row fulfils a condition.
    """
    made: dict[str, pa.DataType] = {}
    for step in spec.step_specs() if spec.steps else ():
        _check_step(step, source, made)
        schema = schema_of(task_of(step))
        made |= dict(zip(schema.names, schema.types, strict=True))


def _check_step(step: BatchInferenceSpec, source: Source, made: Mapping[str, pa.DataType]) -> None:
    """:param made: types of the columns of earlier steps."""
    for condition in step.question.step.when:
        if condition[1] in NULL_OPERATORS or len(condition) < 3:
            continue
        name, operator, value = condition
        values = value if operator in LIST_OPERATORS else [value]
        types = {made[name]} if name in made else _types_in(source, name)
        kinds = {_kind_of_type(one) for one in types}
        if values and kinds and kinds.isdisjoint({_NULL, *map(_kind_of_value, values)}):
            raise PreflightError(
                f"{step.step_prefix}when: {_why(name, types, kinds)}, so no row fulfils a "
                f"comparison with {shown(value)}; {_remedy(kinds, name in made)}."
            )


def _types_in(source: Source, name: str) -> set[pa.DataType]:
    """The types of a column in all files; none where it is not known what it holds."""
    if name in source.mixed or name not in source.schema.names:
        return set()
    if any(name in folders for folders in partitions(source.listing)):
        return {source.schema.field(name).type}
    found = {schema.field(name).type for schema in source.surveyed.schemas if schema and name in schema.names}
    return found or {source.schema.field(name).type}


def _kind_of_type(given: pa.DataType) -> str | None:
    """What values of a type are; ``None`` for those that no condition compares."""
    kind = plain_type(given)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_null(kind):
        return _NULL
    if pa.types.is_boolean(kind):
        return _BOOLEAN
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _NUMBER
    return _TEXT if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return _BOOLEAN
    return _TEXT if isinstance(value, str) else _NUMBER


def _why(name: str, types: set[pa.DataType], kinds: set[str | None]) -> str:
    if None in kinds:
        return f"column {name!r} has the type {' or '.join(sorted(map(str, types)))}"
    return f"column {name!r} is {' or '.join(sorted(filter(None, kinds)))}"


def _remedy(kinds: set[str | None], is_answer: bool) -> str:
    if None in kinds:
        return "compare a column of text, numbers or booleans, or ask whether it 'is null'"
    right = f"compare with {' or '.join(sorted(filter(None, kinds)))}"
    return right if is_answer else f"{right}, or write the column with another type"
