# SPDX-License-Identifier: Apache-2.0
"""Every Arrow type that Parquet supports, from file to dataset, with gaps and repetitions."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import chunk_rows
from airflow_provider_raybatch.job.input import survey as chunks_module
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.job.input.table import as_plain, plain_schema, without_views
from airflow_provider_raybatch.job.parts.part import Part, write_all
from airflow_provider_raybatch.job.preflight.column_check import check_types
from airflow_provider_raybatch.job.row import RowOutcome
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import ONE, failure, publish, response, rows_of
from tests.support.reading import listing_of
from tests.support.specs import spec

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.string(), text),
    (pa.large_string(), text),
    (pa.string_view(), text),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary_view(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int32(), pa.string()), text),
    (pa.dictionary(pa.int8(), pa.int64()), st.integers(0, 5)),
    (pa.dictionary(pa.int16(), pa.large_binary()), st.binary(max_size=3)),
    (pa.date32(), st.dates(datetime.date(1600, 1, 1), datetime.date(2300, 1, 1))),
    (pa.date64(), st.dates(datetime.date(1600, 1, 1), datetime.date(2300, 1, 1))),
    (pa.timestamp("us"), st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))),  # noqa: DTZ001
    (
        pa.timestamp("ms", "UTC"),
        st.datetimes(timezones=st.just(datetime.timezone.utc)).map(
            lambda value: value.replace(microsecond=0)
        ),
    ),
    (pa.time32("ms"), st.times().map(lambda value: value.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999))),
    (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.decimal256(50, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.decimal32(5, 2), st.decimals(-999, 999, places=2)),
    (pa.null(), st.none()),
    (pa.uuid(), st.uuids()),
    (pa.json_(), st.just('{"a": 1}')),
    (pa.bool8(), st.booleans()),
]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def lists(pair: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[Any]:
        kind, values = pair
        some = st.lists(st.none() | values, max_size=3)
        two = st.lists(st.none() | values, min_size=2, max_size=2)
        keyed = st.dictionaries(text, st.none() | values, max_size=2).map(lambda found: list(found.items()))
        return [
            (pa.list_(kind), some),
            (pa.large_list(kind), some),
            (pa.list_(kind, 2), two),
            (pa.map_(pa.string(), kind), keyed),
            (pa.struct([("a", kind), ("b.c", pa.int8())]), st.fixed_dictionaries({"a": st.none() | values})),
        ]

    return inner.flatmap(lambda pair: st.sampled_from(lists(pair)))


kinds = st.recursive(st.sampled_from(LEAVES), containers, max_leaves=4)


@st.composite
def column(draw: st.DrawFn) -> pa.Array:
    kind, values = draw(kinds)
    found = draw(st.lists(st.none() | values, min_size=1, max_size=9))
    try:
        return pa.array(found, kind)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, NotImplementedError):
        # Python values can't make every nested type.
        return pa.nulls(len(found), kind)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal by their text; NaN equals itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return repr(one) == repr(other)


def through(
    folder: Path, *columns: pa.Array, rows_per_chunk: int = 2, source: str = "parquet", **fields: Any
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the values as they are in files of one column each, and the rows as they are in the dataset.

    Every chunk is written as four parts: even rows as failures, odd rows, even rows as good ones, and all
    rows once more.
    """
    (folder / "in").mkdir()
    for number, column in enumerate(columns):
        write(pa.table({"x": column}), folder / f"in/{number}.{source}")
    listing, disk = listing_of(folder / "in"), LocalFolder(str(folder / "out"))
    surveyed = survey(listing, None)
    check_types(spec(**fields), listing.files, surveyed.schemas)
    reader = Reader(listing, None, None)
    found: list[Part] = []
    for number, chunk in enumerate(cut(surveyed, rows_per_chunk, None)):
        rows = reader.read(chunk)
        places = list(range(len(rows)))
        for version, selected in enumerate((places[::2], places[1::2], places[::2], places)):
            for positions, table in rows.portions(selected) if selected else ():
                outcomes = [
                    RowOutcome(
                        chunk.ordinal + place,
                        failure() if version == 0 else response(str(chunk.ordinal + place)),
                    )
                    for place in positions
                ]
                stem = f"_raybatch/parts/task/run/raybatch-x-0~{version}/{number:08d}"
                found += write_all(disk, stem, table, outcomes, ONE)
    size = sum(map(len, columns))
    manifest = publish(disk, found, size, **fields)
    return [value for column in columns for value in column.to_pylist()], rows_of(disk, manifest)


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=5)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    column=column(),
    others=st.lists(column(), max_size=2),
    source=st.sampled_from(["parquet", "arrow"]),
    to=st.sampled_from(["parquet", "jsonl"]),
)
def test_every_type_reaches_the_dataset_or_is_refused(
    column: pa.Array, others: list[pa.Array], source: str, to: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("types")
    try:
        for one in (column, *others):
            write(pa.table({"x": one}), folder / f"x.{source}")
            survey(listing_of(folder / f"x.{source}"), None)
    except (pa.ArrowException, OSError, PreflightError):
        return  # the format has no such type, or Arrow keeps its dictionaries apart
    values, rows = through(folder, column, *others, source=source, destination_format=to)
    assert [row["response"] for row in rows] == [str(place) for place in range(len(values))]
    assert [row["x"] is None for row in rows] == [value is None for value in values]
    if (source, to, others) == ("parquet", "parquet", []):
        for row, value in zip(rows, pq.read_table(folder / "in")["x"].to_pylist(), strict=True):
            assert same(row["x"], value), (column.type, row["x"], value)


TENSOR = pa.fixed_shape_tensor(pa.float32(), [2, 1], permutation=[1, 0])


@pytest.mark.parametrize("to", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    "columns",
    [
        [pa.ExtensionArray.from_storage(TENSOR, pa.array([[1, 2], None, [3, 4]], TENSOR.storage_type))],
        [pa.array([1, None]), pa.array([b"a", None])],
        [pa.array([[1]]), pa.array(["a"]), pa.array([b"\xff"]), pa.array([0], pa.time64("us"))],
    ],
    ids=["tensor", "numbers and bytes", "lists, text and bytes"],
)
def test_what_preflight_takes_is_published(columns: list[pa.Array], to: str, tmp_path: Path) -> None:
    values, rows = through(tmp_path, *columns, rows_per_chunk=1, destination_format=to)
    assert [row["x"] is None for row in rows] == [value is None for value in values]


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.list_(pa.int8(), 0),
        pa.binary(0),
        pa.list_(pa.list_(pa.int8(), 0)),
        pa.struct([]),
        pa.list_view(pa.int8()),
        pa.struct([("a", pa.large_list_view(pa.string()))]),
        pa.run_end_encoded(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_what_publishing_cannot_write_is_refused(kind: pa.DataType, tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as refused:
        through(tmp_path, pa.array([1]), pa.array([], kind), source="arrow")
    start = f"source: column 'x' of {tmp_path}/in/1.arrow has the Arrow type int64 and {kind}, which can't be"
    assert str(refused.value).startswith(start)
    assert str(refused.value).endswith("; write the file again with another type, or without the column.")


def test_a_dictionary_of_lists_is_converted_at_once() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 50), pa.array([[1], [2, 3]]))
    column = as_plain(pa.table({"x": array}))["x"]
    assert (column.num_chunks, column.to_pylist()[:2]) == (1, [[1], [2, 3]])


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(array=column(), data=st.data())
def test_plain_types_have_the_same_values(array: pa.Array, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(array)))
    rows = data.draw(st.integers(0, len(array) - first))
    for chunks in ([array.slice(first, rows)], [array.slice(first), array, array.slice(0, 0)], []):
        table = pa.table({"x": pa.chunked_array(chunks, array.type)})
        for found in (as_plain(table), without_views(table)):
            if found is not table:  # pyarrow makes nulls of some types that it calls invalid itself
                found.validate(full=True)
            for one, other in zip(found["x"], table["x"], strict=True):
                assert same(stored(one), stored(other)), array.type
        plain = as_plain(table)
        assert plain.schema == plain_schema(table.schema) == plain_schema(plain.schema)
        assert plain.take(pa.array(range(len(plain)), pa.int64())).equals(plain) or "float" in str(
            plain.schema
        )


def stored(value: Any) -> Any:
    """Return a scalar's value; plain types have extension types as storage inside of others."""
    if value is None or not value.is_valid:
        return None
    if isinstance(value, (pa.ExtensionScalar, pa.DictionaryScalar)):
        return stored(value.value)
    if isinstance(value, pa.StructScalar):
        return {name: stored(value[place]) for place, name in enumerate(value.type.names)}
    if isinstance(value, pa.ListScalar):
        return [stored(one) for one in value.values]
    return value.as_py()


class TestLargeValues:
    def test_a_category_of_long_texts_is_read(self, tmp_path: Path) -> None:
        """4.4 GB of text in one row group, which takes 11 MB in the file."""
        texts = [f"{number} ".ljust(1_100_000, "x") for number in range(10)]
        codes = pa.array([place % 10 for place in range(4000)], pa.int32())
        column = pa.DictionaryArray.from_arrays(codes, pa.array(texts))
        pq.write_table(pa.table({"x": column, "n": range(4000)}), tmp_path / "x.parquet", compression="zstd")
        listing = listing_of(tmp_path)
        (chunk,) = cut(survey(listing, None), 4000, None)
        rows = Reader(listing, ["n"], None).read(chunk)
        for positions, table in rows.portions([0, 1, 3999]):
            assert table["x"].to_pylist() == [texts[place % 10] for place in positions]

    def test_chunks_of_long_rows_have_few_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 100_000)
        monkeypatch.setattr("airflow_provider_raybatch.job.input.text_index._CELL_BYTES", 50_000)
        monkeypatch.setattr("airflow_provider_raybatch.job.input.text_index._BLOCK", 20_000)
        lines = [f"{number}".ljust(20_000, "x") for number in range(30)]
        pq.write_table(
            pa.table({"x": lines}), tmp_path / "x.parquet", compression="none", use_dictionary=False
        )
        (tmp_path / "x.csv").write_text("x\n" + "\n".join(lines) + "\n")
        for name in ("x.parquet", "x.csv"):
            listing = listing_of(tmp_path / name)
            chunks = cut(survey(listing, None), 1000, None)
            assert max(chunk.rows for chunk in chunks) <= 8
            assert sum(chunk.rows for chunk in chunks) == 30
            reader = Reader(listing, None, None)
            rows = [row for chunk in chunks for row in reader.read(chunk).rows]
            assert rows == [{"x": line} for line in lines]

    def test_rows_larger_than_a_part_are_written_as_several(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chunk_rows, "_PORTION_BYTES", 1000)
        values = [f"{number}".ljust(400 if number % 3 else 3000, "x") for number in range(9)]
        _, rows = through(tmp_path, pa.array(values), rows_per_chunk=9)
        assert [row["x"] for row in rows] == values
