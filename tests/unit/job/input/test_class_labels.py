# SPDX-License-Identifier: Apache-2.0
"""Class labels of ``datasets`` in a prompt: names, at any depth, and numbers everywhere else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.row_template import RowTemplate, RowTemplateError
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from tests.support.reading import listing_of
from tests.support.saved_dataset import as_stream, with_features

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
