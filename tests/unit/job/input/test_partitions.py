# SPDX-License-Identifier: Apache-2.0
"""Folders that name columns, as Hive and Spark write them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.chunk_rows import partitions
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.publishing import part, publish, rows_of
from tests.support.reading import WRITERS, listing_of, read_all
from tests.support.sources import look_at_source
from tests.support.specs import spec

DAY = datetime.date(2026, 1, 31)


def named(*uris: str) -> list[dict[str, Any]]:
    files = tuple(SourceFile(uri, 1, "v") for uri in uris)
    return [{name: value.as_py() for name, value in one.items()} for one in partitions(Listing("csv", files))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "02", "-3"], [1, 2, -3]),
        (["1", "x"], ["1", "x"]),
        (["1", "2.5"], ["1", "2.5"]),
        (["2026-01-31", "2026-02-01"], [DAY, datetime.date(2026, 2, 1)]),
        (["2026-01-31", "2026-02-31"], ["2026-01-31", "2026-02-31"]),
        (["2026-01-31", "__HIVE_DEFAULT_PARTITION__"], [DAY, None]),
        (["__HIVE_DEFAULT_PARTITION__"], [None]),
        (["a%20b%3Dc", "ü"], ["a b=c", "ü"]),
        (["9" * 18, "9" * 19], ["9" * 18, "9" * 19]),
        (["a=b"], ["a=b"]),
    ],
)
def test_types_follow_from_the_values_of_all_files(values: list[str], expected: list[Any]) -> None:
    assert named(*(f"s3://b/t/x={value}/f.csv" for value in values)) == [{"x": value} for value in expected]


def test_what_names_a_column_and_what_does_not() -> None:
    assert named("/a/year=2026/my%20day=31/f.csv", "/a/f=1.csv", "/a/=1/f.csv") == [
        {"year": 2026, "my day": 31},
        {},
        {},
    ]
    assert named("s3://bucket/day=1/f=2.csv", "https://host/day=1/f.csv") == [{"day": 1}, {}]


def put(place: Folder, kind: str) -> None:
    for number, day in enumerate(("2026-01-31", "__HIVE_DEFAULT_PARTITION__")):
        rows = [{"text": f"{number}-{place}", "day": "of the file"} for place in range(10)]
        place.write(f"t/day={day}/_hour={number}/x.{kind}", WRITERS[kind](rows))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_partitions_are_columns(folder: Folder, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    credentials = folder.credentials if isinstance(folder, S3Folder) else None
    put(folder, kind)
    prompt = "{row.text} {row.day} {row['_hour']}"
    source = look_at_source(spec(source=[f"{folder.uri}/t"], prompt=prompt), credentials)
    assert source.columns == ["text", "day", "_hour"]
    assert source.schema.field("day").type == pa.date32()
    expected = [
        {"text": f"{number}-{row}", "day": DAY if number == 0 else None, "_hour": number}
        for number in (0, 1)
        for row in range(10)
    ]
    assert sorted(map(str, read_all(source.listing, 3, credentials=credentials)[1])) == sorted(
        map(str, expected)
    )
    chunks = cut(survey(source.listing, credentials), 100, None)
    ids = Reader(source.listing, ["_hour"], credentials, whole=False)
    hours = [row["_hour"] for chunk in chunks for row in ids.read(chunk).rows if isinstance(row, dict)]
    assert sorted(hours) == [0] * 10 + [1] * 10
    disk = LocalFolder(str(tmp_path_factory.mktemp("out")))
    reader = Reader(source.listing, ["day"], credentials)
    written = [
        part(disk, table, first=chunk.ordinal, ordinals=[chunk.ordinal + place for place in positions])
        for chunk in chunks
        for read in [reader.read(chunk)]
        for positions, table in read.portions(range(chunk.rows))
    ]
    manifest = publish(disk, written, 20, schema=source.schema)
    types = {column.name: column.type for column in manifest.columns}
    assert (types["day"], types["_hour"], types["text"]) == ("date32[day]", "int64", "string")
    found = [{name: row[name] for name in ("text", "day", "_hour")} for row in rows_of(disk, manifest)]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_missing_partition_is_refused_if_the_prompt_needs_it(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    for path in ("day=1/x.parquet", "y.parquet"):
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / path)
    paths = [str(tmp_path)]
    with pytest.raises(PreflightError) as caught:
        look_at_source(spec(source=paths, prompt="{row.day}"))
    assert str(caught.value) == (f"prompt: {tmp_path}/y.parquet has no column 'day' (its columns: text).")
    source = look_at_source(spec(source=paths, prompt="{row.text}"))
    assert source.columns == ["text", "day"]
    _, rows, table = read_all(listing_of(tmp_path))
    assert rows == table == [{"text": "a", "day": 1}, {"text": "a"}]


def test_a_partition_that_the_source_itself_names_is_a_column(tmp_path: Path) -> None:
    (tmp_path / "day=2026-01-31").mkdir()
    (tmp_path / "day=2026-01-31/x.csv").write_text("text\na\n")
    for path in ("day=2026-01-31", "day=2026-01-31/x.csv", "day=*/x.csv"):
        listing = resolve(InputArguments(source=[f"{tmp_path}/{path}"]), None)
        assert read_all(listing)[1] == [{"text": "a", "day": DAY}]
