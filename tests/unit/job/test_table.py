# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import decimal
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.source.table import as_text, column_of, table_of

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


def through_parquet(column: pa.Array) -> pa.Array:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": column}), buffer)
    return pq.read_table(io.BytesIO(buffer.getvalue()))["x"].combine_chunks()


@given(st.lists(values, min_size=1, max_size=6))
def test_any_json_becomes_a_column_that_parquet_can_hold(column: list[Any]) -> None:
    made = column_of(column)
    assert len(made) == len(column)
    back = through_parquet(made).to_pylist()
    if pa.types.is_string(made.type):
        assert back == [as_text(value) for value in column]
    assert [value is None for value in back] == [value is None for value in column]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([1, "a"], pa.string()),
        ([True, 1], pa.string()),
        ([2**60 + 1, 0.5], pa.string()),
        ([10**30], pa.string()),
        ([{}], pa.string()),
        ([[{}]], pa.string()),
        ([None, None], pa.null()),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ],
)
def test_types_of_mixed_values(column: list[Any], kind: pa.DataType) -> None:
    assert column_of(column).type == kind


def test_what_is_nested_too_deeply_becomes_text() -> None:
    value: Any = 1
    for _ in range(200):
        value = {"a": value}
    (text,) = through_parquet(column_of([value])).to_pylist()
    assert json.loads(text) == value


def test_a_table_has_every_column_of_any_row() -> None:
    table = table_of([{"a": 1}, {}, {"b": "x", "a": 2}])
    assert table.column_names == ["a", "b"]
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 2, "b": "x"}]
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
