# SPDX-License-Identifier: Apache-2.0
"""Rows as Arrow, without losing any to a type that fits the others badly."""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.failures import PreflightError

_DEEPEST = 20
"""Levels of nesting that stay Arrow: much deeper ones pyarrow writes to Parquet, but does not read."""


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table with the union of the rows' columns in order of appearance; absent values are null.

    A column whose values fit no single Arrow type, or that Parquet could not hold, becomes text: strings as
    they are, everything else as JSON.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [column_of([row.get(name) for row in rows]) for name in names]
    return pa.table(columns, names=names) if names else pa.table({}).select([])


def column_of(values: Sequence[Any]) -> pa.Array:
    """One column; text where the values don't fit one type."""
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([as_text(value) for value in values], pa.string())
    if _writable(column.type, _DEEPEST):
        return column
    return pa.array([as_text(value) for value in values], pa.string())


def as_text(value: Any) -> str | None:
    """Strings as they are, times in ISO 8601, bytes in Base64, numbers and nested values as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float, list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=as_text)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else str(value)


def check_names(names: Sequence[str], uri: str) -> None:
    """:raises PreflightError: a column is there twice."""
    (name, times) = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise PreflightError(
            f"source: {uri} has the column {name!r} {times} times; rename all but one in the file."
        )


def _writable(kind: pa.DataType, depth: int) -> bool:
    """Parquet has no struct without fields, and its readers refuse what is nested too deeply."""
    if depth == 0:
        return False
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(
            _writable(kind.field(i).type, depth - 1) for i in range(kind.num_fields)
        )
    return _writable(kind.value_type, depth - 1) if pa.types.is_list(kind) else True
