# SPDX-License-Identifier: Apache-2.0
"""Inputs of unusual layout and types, through the whole job."""

from __future__ import annotations

import datetime
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.storage.folder import LocalFolder

from .place import Place


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def test_partitions_categories_and_views_are_delivered(place: Place, ray_here: Any) -> None:
    lake = LocalFolder(str(place.folder / "lake"))
    days = ("2026-01-31", "2026-02-01")
    for number, day in enumerate(days):
        table = pa.table({
            "text": pa.array([f"{number}-{row % 3}" for row in range(20)]).dictionary_encode(),
            "pair": pa.array([["a", str(row)] for row in range(20)], pa.list_(pa.string_view(), 2)),
        })
        lake.write(f"t/day={day}/x.parquet", parquet(table))
    manifest = place.run(
        source=[f"{lake.uri}/t"],
        prompt="{row.text} of {row.day}",
    )
    rows = place.rows(manifest)
    assert {column.name: column.type for column in manifest.columns}["day"] == "date32[day]"
    assert [(row["text"], row["day"], row["pair"], row["response"]) for row in rows] == [
        (f"{n}-{row % 3}", datetime.date.fromisoformat(day), ["a", str(row)], f"{n}-{row % 3} of {day}")
        for n, day in enumerate(days)
        for row in range(20)
    ]


def test_an_empty_input_needs_no_model(place: Place, ray_here: Any) -> None:
    lake = LocalFolder(str(place.folder / "lake"))
    lake.write("t/x.parquet", parquet(pa.table({"text": pa.array([], pa.string())})))
    manifest = place.run(source=[f"{lake.uri}/t"], engine="vllm", model="/models/not-there")
    assert (manifest.counts.ok, manifest.counts.error) == (0, 0)
    assert list(manifest.timing.phases) == ["source", "prompt", "earlier", "claim"]


@pytest.mark.share(2)
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_values_do_not_depend_on_the_batch_size(place: Place, ray_here: Any, batch_size: int) -> None:
    numbers = [4990.0, 4999.0, 3] * 10 + ["none"]
    rows = [{"text": "x", "n": n, "o": {f"k{place}": n}} for place, n in enumerate(numbers)]
    many = [{"text": "x", "o": {f"many{number}": 1}} for number in range(100)]
    blank = [{"text": text} for text in ("", " ", None)]
    source = place.jsonl(*rows, *blank, *many)
    manifest = place.run(source=source, engine="echo", batch_size=batch_size, on_blank="null")
    found = place.rows(manifest)
    assert [row["response"] for row in found] == ["x"] * 31 + [None] * 3 + ["x"] * 100
    assert (manifest.counts.blank, manifest.counts.error) == (3, 0)
    assert [row["n"] for row in found[:31]] == ["4990.0", "4999.0", "3"] * 10 + ["none"]
    assert found[0]["o"] == '{"k0": 4990.0}'
    assert found[-1]["o"] == '{"many99": 1}'


def test_damaged_pages_end_the_job_for_good(place: Place, ray_here: Any) -> None:
    table = pa.table({"text": [f"row {number} " * 5 for number in range(3000)]})
    content = bytearray(parquet(table, row_group_size=1500))
    last = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(1).column(0)
    content[last.data_page_offset + 100 : last.data_page_offset + 160] = b"\xff" * 60
    with pytest.raises(RaybatchError) as caught:
        place.run(source=place.file("x.parquet", bytes(content)))
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert "x.parquet is damaged, column 'text' of row group 1 can't be decoded (" in str(caught.value)
