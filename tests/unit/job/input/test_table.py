# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.input.table import as_text, members, table_of


def test_a_table_has_every_column_of_any_row() -> None:
    table = table_of([{"a": 1}, {}, {"b": "x", "a": 2}])
    assert table.column_names == ["a", "b"]
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 2, "b": "x"}]
    assert table_of([{"a": 1}, {"a": [2]}]).to_pylist() == [{"a": "1"}, {"a": "[2]"}]
    assert table_of([]).num_columns == table_of([{}, {}]).num_columns == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("x", "x"),
        (True, "true"),
        (1.5, "1.5"),
        ({"a": ["ü", None, datetime.date(2026, 1, 2)]}, '{"a": ["ü", null, "2026-01-02"]}'),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),  # noqa: DTZ001 - Arrow's naive times come so
        (decimal.Decimal("1.50"), "1.50"),
        (b"\x00\xff", "AP8="),
    ],
)
def test_any_value_has_a_text(value: Any, text: str | None) -> None:
    assert as_text(value) == text


def test_members_of_a_struct_are_its_columns() -> None:
    """In chunks, cut out of larger arrays, null where the row is, and of any name."""
    rows = [{".a": 1, "[0]": "x", "c": [1]}, None, {".a": None, "[0]": "y", "c": []}, {".a": 4}]
    kind = pa.struct([(".a", pa.int64()), ("[0]", pa.string()), ("c", pa.list_(pa.int64()))])
    column = pa.chunked_array([pa.array(rows, kind).slice(1), pa.array(rows, kind).slice(0, 2)])
    found = {name: array.to_pylist() for name, array in members(column).items()}
    assert found == {
        ".a": [None, None, 4, 1, None],
        "[0]": [None, "y", None, "x", None],
        "c": [None, [], None, [1], None],
    }
    empty = members(pa.chunked_array([], kind))
    assert [(name, len(array), array.type) for name, array in empty.items()] == [
        (one.name, 0, one.type) for one in kind
    ]
