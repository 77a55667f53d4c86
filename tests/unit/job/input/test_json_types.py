# SPDX-License-Identifier: Apache-2.0
"""A column's type and values depend on its values, and never on the borders of chunks."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.job.input import json_types
from airflow_provider_raybatch.job.input.json_types import MOST_FIELDS, TEXT, arrow_type, join, kind_of
from airflow_provider_raybatch.job.input.table import as_text, kinds_of, restored, table_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import part, publish, rows_of

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30]),
    st.sampled_from([0.5, 4990.0, 1e300]),
    text,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(column=st.lists(values, min_size=1, max_size=8), cuts=st.sets(st.integers(1, 7)))
@example(column=[4990.0, 4999.0, "x"], cuts={1})
@example(column=[{}, {"a": 1}], cuts={1})
@example(column=[2**63, -1], cuts={1})
@example(column=[1, 2.0, "x"], cuts={2})
@example(column=[{"a": 1}, {"b": 2}, "x"], cuts={2})
@example(column=["null", None, '"', 1], cuts={3})
def test_types_and_values_are_the_same_for_any_chunks(column: list[Any], cuts: set[int]) -> None:
    borders = [0, *sorted(cut for cut in cuts if cut < len(column)), len(column)]
    pieces = [column[start:stop] for start, stop in itertools.pairwise(borders)]
    tables = [table_of([{"x": value} for value in piece]) for piece in pieces]
    joined = join(*(kinds_of(table.schema)["x"] for table in tables))
    whole = kind_of(column)
    assert json.loads(json.dumps(joined)) == json.loads(json.dumps(whole))
    wanted = arrow_type(joined)
    back = [
        value
        for table in tables
        for value in restored(table["x"].combine_chunks(), kinds_of(table.schema)["x"], wanted).to_pylist()
    ]
    if pa.types.is_string(wanted):
        assert back == [as_text(value) for value in column]
    else:
        assert back == pa.array(column, wanted).to_pylist()
    assert [value is None for value in back] == [value is None for value in column]


@given(a=values, b=values, c=values)
def test_kinds_join_in_any_order(a: Any, b: Any, c: Any) -> None:
    one, two, three = (kind_of([value]) for value in (a, b, c))
    assert join(one, join(two, three)) == join(join(one, two), three)
    assert join(one, two) == join(two, one)
    assert join(one, one) == one == join(one)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.dictionaries(st.sampled_from("xy"), values), min_size=2, max_size=6))
@example(rows=[{"x": 4990.0}, {"x": 4999.0}, {"x": "none"}, {"x": 4990.0}])
def test_a_dataset_does_not_depend_on_batch_size(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Which is that of its chunks."""
    found = []
    for size in (1, 2, len(rows)):
        disk = LocalFolder(str(tmp_path_factory.mktemp("out")))
        written = [part(disk, rows[first : first + size], first=first) for first in range(0, len(rows), size)]
        manifest = publish(disk, written, len(rows))
        found.append(([(c.name, c.type) for c in manifest.columns], rows_of(disk, manifest)))
    assert repr(found[0]) == repr(found[1]) == repr(found[2])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([1, "a"], pa.string()),
        ([True, 1], pa.string()),
        ([2**60 + 1, 0.5], pa.string()),
        ([10**30], pa.string()),
        ([2**63], pa.string()),
        ([{}], pa.string()),
        ([[{}]], pa.string()),
        ([None, None], pa.null()),
        ([[], [1]], pa.list_(pa.int64())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"a": 1}, {"a": "x"}], pa.string()),
    ],
)
def test_types_of_mixed_values(column: list[Any], kind: pa.DataType) -> None:
    assert arrow_type(kind_of(column)) == kind


def test_objects_with_too_many_keys_stay_json_text(tmp_path: Path) -> None:
    rows = [{"x": {f"key {number}": number}} for number in range(12_000)]
    began = time.process_time()
    disk = LocalFolder(str(tmp_path))
    written = [part(disk, rows[first : first + 500], first=first) for first in range(0, len(rows), 500)]
    manifest = publish(disk, written, len(rows))
    assert next(column.type for column in manifest.columns if column.name == "x") == "string"
    assert [json.loads(row["x"]) for row in rows_of(disk, manifest)] == [row["x"] for row in rows]
    assert time.process_time() - began < 20  # 36 s where it grows with the square of the rows
    few = [{f"key {number}": number} for number in range(MOST_FIELDS)]
    assert kind_of(few) != TEXT
    assert kind_of([*few, {"one more": 1}]) == join(kind_of(few), kind_of([{"one more": 1}])) == TEXT
    nested = [{"a": {f"key {number}": {"b": 1}}} for number in range(MOST_FIELDS // 2)]
    assert kind_of(nested) == TEXT


def test_what_is_nested_too_deeply_becomes_text(tmp_path: Path) -> None:
    deepest = json_types._DEEPEST
    for levels in (deepest - 1, deepest, 200):
        value: Any = 1
        for _ in range(levels):
            value = {"a": value}
        disk = LocalFolder(str(tmp_path / str(levels)))
        (row,) = rows_of(disk, publish(disk, [part(disk, [{"x": value}])], 1))
        assert (json.loads(row["x"]) if levels >= deepest else row["x"]) == value


def test_kinds_travel_in_the_footer_of_a_part(tmp_path: Path) -> None:
    disk = LocalFolder(str(tmp_path))
    written = part(disk, [{"x": 1, "y": [0.5]}, {"x": "a"}])
    schema = pq.read_schema(tmp_path / written.path)
    assert kinds_of(schema) == {"x": "text", "y": ["list", "float"]}
