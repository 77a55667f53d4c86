# SPDX-License-Identifier: Apache-2.0
"""Large responses: parts and published files are cut by bytes, since Arrow's columns have a bound."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.output import rows as rows_module
from airflow_provider_raybatch.job.output.publish import Target, publish
from airflow_provider_raybatch.job.output.rows import ranges
from airflow_provider_raybatch.job.output.schema import footers
from airflow_provider_raybatch.job.parts import part as part_module
from airflow_provider_raybatch.job.parts.part import read_between, write_all
from airflow_provider_raybatch.job.parts.reading import cumulated, portions, row_bytes
from airflow_provider_raybatch.job.row import Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.tasks.generate import COMPLETION
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import ONE, SEVERAL, failure, part, response

RUN = "_raybatch/parts/task/run"


@pytest.mark.parametrize(
    ("values", "kind", "sizes"),
    [
        (["a", None, "\u00e9\u00e9", ""], pa.string(), [1, 0, 4, 0]),
        (["a", None, "abc"], pa.large_string(), [1, 0, 3]),
        ([b"ab", b""], pa.binary(), [2, 0]),
        ([["ab", None], None, [], ["c", "def"]], pa.list_(pa.string()), [2, 0, 0, 4]),
        ([["a", "bcd"], ["", "e"]], pa.list_(pa.string(), 2), [4, 1]),
        ([{"x": "ab", "y": ["c"]}, None, {"x": None, "y": ["d", "ef"]}],
         pa.struct([("x", pa.string()), ("y", pa.list_(pa.string()))]), [3, 0, 3]),
        ([1, 2], pa.int64(), [8, 8]),
        ([], pa.list_(COMPLETION), []),
    ],
)  # fmt: skip
def test_bytes_of_each_row(values: list[Any], kind: pa.DataType, sizes: list[int]) -> None:
    array = pa.array(values, kind)
    assert row_bytes(array).tolist() == sizes
    assert row_bytes(pa.chunked_array([array.slice(1), array], kind)).tolist() == sizes[1:] + sizes


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"a": "b"}, pa.map_(pa.string(), pa.string())),
        (True, pa.bool_()),
        (None, pa.null()),
        (decimal.Decimal("1.5"), pa.decimal128(5, 2)),
        (datetime.date(2020, 1, 1), pa.date32()),
        (bytes(16), pa.binary(16)),
    ],
)
def test_each_type_has_sizes(value: Any, kind: pa.DataType) -> None:
    assert len(row_bytes(pa.array([value, None], kind))) == 2


def test_rows_are_cut_by_bytes() -> None:
    assert list(portions([4, 4, 4, 20, 1, 0], 8)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(portions([], 8)) == []


def test_bytes_are_known_where_they_lie() -> None:
    sizes = np.array([1, 1, 100, 1, 1, 100])
    assert cumulated(np.array([5, 6, 7, 8, 9, 10]), sizes, 4) == [(7, 102), (10, 204)]
    assert cumulated(np.array([9, 1]), np.array([4, 4]), 2) == [(1, 4), (9, 8)]
    assert cumulated(np.array([3, 4]), np.array([0, 0]), 2) == [(3, 0)]


def test_large_responses_and_requests_get_parts_of_their_own(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight completions of 14 KB, 20,000 rows made a part that no reader could read."""
    monkeypatch.setattr(part_module, "MOST_BYTES", 2100)
    results: list[Response | RowFailure] = [response(*["x" * 100] * 8)] * 7
    results += [failure(reason="y" * 900)] * 3
    outcomes = [RowOutcome(n, result, "z" * 700) for n, result in enumerate(results)]
    columns = table_of([{"n": n} for n in range(10)])
    made = write_all(disk, f"{RUN}/s/0", columns, outcomes, SEVERAL)
    assert [one.rows for one in made] == [2, 2, 2, 1, 1, 1, 1]
    tables = [read_between(disk, one, 0, 10) for one in made]
    assert [row["ordinal"] for table in tables for row in table.to_pylist()] == list(range(10))
    assert [row["input"] for table in tables for row in table.to_pylist()] == columns.to_pylist()


def test_a_range_is_cut_where_the_long_rows_lie(disk: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean size of a part's rows, the first range would have almost all bytes."""
    texts = ["x" * 1000 if n < 100 else "y" for n in range(800)]
    found = []
    for replica in range(4):
        own = range(replica, 800, 4)
        answers = [response(texts[n]) for n in own]
        found.append(part(disk, [{"n": n} for n in own], answers, ordinals=own, submission=replica))
    decoded = {one.path: footer.decoded for one, footer in zip(found, footers(disk, found), strict=True)}
    target = Target(disk, "data", "dead", "parquet", {"n": pa.int64()}, ONE)
    monkeypatch.setattr(rows_module, "_MOST_DECODED", 20_000)
    cut = ranges(found, 800, 800, decoded)
    assert len(cut) < 20
    done = [publish(one, target) for one in cut]
    assert sum(one.rows for one in done) == 800
    assert max(sum(len(texts[n]) for n in range(one.first, one.stop)) for one in cut) <= 20_000
