# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from airflow_provider_raybatch.job.input.table import as_text, table_of


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
