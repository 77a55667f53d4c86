# SPDX-License-Identifier: Apache-2.0
"""Rows of a table as Python values, whatever they hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def row_values(table: pa.Table) -> list[dict[str, Any]]:
    """The rows; values that Python can't hold (invalid UTF-8, dates after year 9999) as JSON has them."""
    try:
        return table.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        columns = [_values(column) for column in table.columns]
        return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]
    except (ValueError, OverflowError):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
