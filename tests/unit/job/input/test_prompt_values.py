# SPDX-License-Identifier: Apache-2.0
"""Values of each Arrow type in a prompt: one text, in a column and at any depth of another value."""

from __future__ import annotations

import copy
import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.row_template import RowTemplate, RowTemplateError
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from tests.support.reading import listing_of
from tests.support.saved_dataset import as_stream, with_features

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
DAY = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2])
TEXTS: list[tuple[pa.DataType, Any, str, str]] = [
    (pa.string(), 'a "b" ü', 'a "b" ü', '"a \\"b\\" ü"'),
    (pa.bool_(), True, "true", "true"),
    (pa.int64(), -7, "-7", "-7"),
    (pa.uint64(), 2**64 - 1, str(2**64 - 1), str(2**64 - 1)),
    (pa.float16(), np.float16(0.1), "0.1", "0.1"),
    (pa.float32(), 0.1, "0.1", "0.1"),
    (pa.float32(), 16777217.0, "16777216.0", "16777216.0"),
    (pa.float32(), 3.4028235e38, "3.4028235e+38", "3.4028235e+38"),
    (pa.float32(), float("nan"), "NaN", "NaN"),
    (pa.float64(), 0.1, "0.1", "0.1"),
    (pa.float64(), -float("inf"), "-Infinity", "-Infinity"),
    (pa.decimal128(20, 9), Decimal(0), "0.000000000", "0.000000000"),
    (pa.decimal128(20, 2), Decimal("1.10"), "1.10", "1.10"),
    (pa.date32(), DAY.date(), "2026-01-02", '"2026-01-02"'),
    (pa.time64("us"), DAY.time(), "03:04:05", '"03:04:05"'),
    (pa.timestamp("us", "UTC"), DAY, "2026-01-02T03:04:05+00:00", '"2026-01-02T03:04:05+00:00"'),
    (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001", '"1970-01-01T00:00:00.000000001"'),
    (pa.duration("us"), datetime.timedelta(1, 7384, 500000), "P1DT2H3M4.5S", '"P1DT2H3M4.5S"'),
    (pa.duration("ns"), -1, "-PT0.000000001S", '"-PT0.000000001S"'),
    (pa.duration("s"), 0, "PT0S", '"PT0S"'),
    (pa.uuid(), UUID.bytes, str(UUID), f'"{UUID}"'),
    (TENSOR, [0.1, 0.2], "[0.1, 0.2]", "[0.1, 0.2]"),
    (pa.list_(pa.float32()), [0.1, None], "[0.1, null]", "[0.1, null]"),
    (pa.large_list(pa.bool_()), [True], "[true]", "[true]"),
    (pa.struct({"a": pa.float32(), "b": pa.date32()}), {"a": 0.3}, *['{"a": 0.3, "b": null}'] * 2),
    (pa.map_(pa.string(), pa.float32()), [("a", 0.1)], '{"a": 0.1}', '{"a": 0.1}'),
    (pa.map_(pa.int32(), pa.string()), [(1, "x")], '{"1": "x"}', '{"1": "x"}'),
    (pa.map_(pa.date32(), pa.bool_()), [(DAY.date(), None)], '{"2026-01-02": null}', '{"2026-01-02": null}'),
    (pa.map_(pa.string(), pa.string()), [], "{}", "{}"),
]  # fmt: skip
BINARY = [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()]


def prompt_of(folder: Path, value: pa.Array) -> str:
    """What a template makes of the value in a column of a Parquet file."""
    pq.write_table(pa.table({"v": value}), folder / "x.parquet")
    listing = listing_of(folder)
    (chunk,) = cut(survey(listing, None), 8, None)
    (row,) = Reader(listing, ["v"], None, texts=["v"]).read(chunk).rows
    assert isinstance(row, dict)
    return RowTemplate("{row.v}").render(row)


def of_type(kind: pa.DataType, value: Any) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([value], kind.storage_type))
    return pa.array([value], kind)


def inside(value: pa.Array) -> pa.Array:
    """The value three levels deep, as {"f": {"k": [value]}}; Arrow has no map of extension types."""
    kind = value.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.StructArray.from_arrays([value], ["f"])
    listed = pa.ListArray.from_arrays([0, 1], value)
    return pa.StructArray.from_arrays([pa.MapArray.from_arrays([0, 1], ["k"], listed)], ["f"])


@pytest.mark.parametrize(("kind", "value", "text", "nested"), TEXTS, ids=lambda x: str(x)[:24])
def test_each_type_has_one_text_at_every_depth(
    tmp_path: Path, kind: pa.DataType, value: Any, text: str, nested: str
) -> None:
    column = of_type(kind, value)
    assert prompt_of(tmp_path, column) == text
    assert nested in {text, json.dumps(text, ensure_ascii=False)}
    around = '{"f": %s}' if isinstance(kind, pa.BaseExtensionType) else '{"f": {"k": [%s]}}'
    assert prompt_of(tmp_path, inside(column)) == around % nested


@pytest.mark.parametrize("kind", BINARY, ids=str)
def test_binary_at_any_depth_is_a_dead_letter(tmp_path: Path, kind: pa.DataType) -> None:
    value = pa.array([b"\x89P"], kind)
    for column in (value, pa.ListArray.from_arrays([0, 1], value), inside(value)):
        with pytest.raises(RowTemplateError, match=r"column 'v' .*binary.* has no text form"):
            prompt_of(tmp_path, column)


def test_values_of_other_columns_are_pythons_own(tmp_path: Path) -> None:
    """Users' functions and sampling parameters get what they got: the float, and a list of tuples."""
    pq.write_table(
        pa.table({"f": of_type(pa.float32(), 0.1), "t": of_type(pa.float32(), 0.1)}), tmp_path / "x.parquet"
    )
    listing = listing_of(tmp_path)
    (chunk,) = cut(survey(listing, None), 8, None)
    (row,) = Reader(listing, None, None, texts=["t"]).read(chunk).rows
    assert isinstance(row, dict)
    assert [type(row["f"]) is float, str(row["f"]), row["t"] == row["f"], f"{row['t']}"] == [
        True, "0.10000000149011612", True, "0.10000000149011612",
    ]  # fmt: skip


LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}
VALUE = {"dtype": "string", "_type": "Value"}
FEATURES = {
    "text": VALUE,
    "label": LABEL,
    "tags": {"feature": LABEL, "_type": "List"},
    "old": [LABEL],
    "spans": {
        "feature": {"kind": LABEL, "score": {"dtype": "float32", "_type": "Value"}},
        "_type": "Sequence",
    },
    "image": {"_type": "Image"},
}
ROWS = [
    {
        "text": f"row {number}",
        "label": number - 1,
        "tags": [number % 2, None],
        "old": [1],
        "spans": {"kind": [0, 1], "score": [0.1, 0.2]},
        "image": {"bytes": b"\x89PNG", "path": None},
    }
    for number in range(4)
]
SCHEMA = pa.schema([
    ("text", pa.string()),
    ("label", pa.int64()),
    ("tags", pa.list_(pa.int64())),
    ("old", pa.list_(pa.int64())),
    ("spans", pa.struct({"kind": pa.list_(pa.int64()), "score": pa.list_(pa.float32())})),
    ("image", pa.struct({"bytes": pa.binary(), "path": pa.string()})),
])
TABLE = with_features(pa.Table.from_pylist(ROWS, SCHEMA), FEATURES)


def write(folder: Path, kind: str, table: pa.Table) -> Path:
    path = folder / f"x.{kind}"
    if kind == "arrow":
        path.write_bytes(as_stream(table))
    else:
        pq.write_table(table, path)
    return path


def read(path: Path, columns: list[str] | None, texts: list[str]) -> tuple[list[dict[str, Any]], pa.Table]:
    listing = listing_of(path)
    (chunk,) = cut(survey(listing, None), 8, None)
    found = Reader(listing, columns, None, texts=texts).read(chunk)
    return [row for row in found.rows if isinstance(row, dict)], found.columns()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_prompt_has_names_and_the_dataset_numbers(tmp_path: Path, kind: str) -> None:
    texts = ["label", "tags", "old", "spans"]
    rows, table = read(write(tmp_path, kind, TABLE), texts, texts)
    template = RowTemplate("{row.label} {row.tags} {row.old} {row.spans}")
    spans = '{"kind": ["neg", "pos"], "score": [0.1, 0.2]}'
    assert [template.render(row) for row in rows] == [
        f'-1 ["neg", null] ["pos"] {spans}',
        f'neg ["pos", null] ["pos"] {spans}',
        f'pos ["neg", null] ["pos"] {spans}',
        f'2 ["pos", null] ["pos"] {spans}',
    ]
    assert [row["label"] for row in copy.deepcopy(rows)] == [-1, 0, 1, 2]
    assert table.to_pylist() == TABLE.to_pylist()


def test_an_image_is_bytes_for_a_function_and_no_text(tmp_path: Path) -> None:
    """A function gets Python's own values, and numbers for labels."""
    path = write(tmp_path, "arrow", TABLE)
    rows, _ = read(path, None, [])
    assert rows == TABLE.to_pylist()
    assert type(rows[0]["label"]) is int
    with pytest.raises(RowTemplateError, match="column 'image' has binary inside, which has no text form"):
        RowTemplate("{row.image}").render(rows[0])


@pytest.mark.parametrize(
    "note",
    [
        "no JSON",
        "[]",
        '{"info": {"features": []}}',
        '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
        '{"info": {"features": {"label": {"names": [1], "_type": "ClassLabel"}, "text": []}}}',
        '{"info": {"features": {"gone": {"names": ["a"], "_type": "ClassLabel"}}}}',
    ],
)
def test_a_note_without_names_changes_nothing(tmp_path: Path, note: str) -> None:
    path = write(tmp_path, "parquet", TABLE.replace_schema_metadata({"huggingface": note}))
    rows, _ = read(path, ["label", "text"], ["label", "text"])
    assert [RowTemplate("{row.label} {row.text}").render(row) for row in rows[1:3]] == ["0 row 1", "1 row 2"]
