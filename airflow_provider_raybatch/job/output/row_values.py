# SPDX-License-Identifier: Apache-2.0
"""Rows of a table as values for JSON and as its lines, whatever they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.prompt_text import MapEntries
from airflow_provider_raybatch.job.input.prompt_values import mark
from airflow_provider_raybatch.job.input.table import as_text


def row_values(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, an Arrow map as an object, as in prompts.

    Values that Python can't hold (invalid UTF-8, dates after year 9999) are what JSON has for them.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError):
        columns = [_values(column) for column in table.columns]
        return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    if maps := [column.name for column in table.schema if "map<" in str(column.type)]:
        mark(rows, table.schema, maps)
        rows = [{**row, **{name: _with_objects(row[name]) for name in maps}} for row in rows]
    return rows


def json_line(row: dict[str, Any]) -> bytes:
    """A row as a line of JSON, which has no NaN and no infinity."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=as_text)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, default=as_text)
    return (text + "\n").encode()


def _with_objects(value: Any) -> Any:
    if isinstance(value, MapEntries):
        return {as_text(name): _with_objects(inner) for name, inner in value}
    if isinstance(value, dict):
        return {name: _with_objects(inner) for name, inner in value.items()}
    return [_with_objects(inner) for inner in value] if isinstance(value, list) else value


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]
    except (ValueError, OverflowError):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value
