# SPDX-License-Identifier: Apache-2.0
"""Samples, comparisons, dead letters and data frames of finished datasets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Dataset, DatasetError
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.approved import AssertSentences
from tests.support.publishing import failure, part, publish, response
from tests.support.specs import submitted

ROWS = 20
KINDS = pytest.mark.parametrize("kind", ["parquet", "jsonl"])
Make = Callable[..., Dataset]


def maker(folder: Folder) -> Make:
    """Return a function that publishes numbered rows in several files, in runs of their own."""
    made = 0

    def make(texts: Mapping[int, str | RowFailure], **fields: Any) -> Dataset:
        """`texts` by row, which are good with any other response by default."""
        nonlocal made
        made += 1
        rows, ids = fields.pop("rows", ROWS), fields.pop("ids", "r{}".format)
        answers = {number: texts.get(number, f"text {number}") for number in range(rows)}
        results = [one if isinstance(one, RowFailure) else response(one) for one in answers.values()]
        table = [{"id": ids(number), "n": number} for number in range(rows)]
        written = part(folder, table, results, run=f"_raybatch/parts/{made}")
        fields = {"rows_per_part": 6, "destination": folder.uri, **fields}
        manifest = publish(folder, [written], rows, submitted(token=f"run-{made}", **fields))
        return opened(manifest, folder)

    return make


def opened(manifest: BatchManifest, folder: Folder) -> Dataset:
    return Dataset(manifest, folder.credentials if isinstance(folder, S3Folder) else None)


@pytest.fixture
def make(disk: LocalFolder) -> Make:
    """See :func:`maker`."""
    return maker(disk)


@pytest.fixture
def make_anywhere(folder: Folder) -> Make:
    """The same in a folder of each kind."""
    return maker(folder)


class TestJsonl:
    """Arrow would take the columns from the first MiB of the first file."""

    def test_may_have_a_column_that_is_null_at_first(self, make: Make) -> None:
        names = [None] * 6 + [f"r{number}" for number in range(6, ROWS)]
        dataset = make({}, ids=names.__getitem__, destination_format="jsonl")
        assert dataset.to_arrow()["id"].to_pylist() == names
        assert dataset.to_polars().collect()["id"].to_list() == names

    def test_may_have_such_a_column_in_one_file(self, make: Make) -> None:
        texts = dict.fromkeys(range(ROWS), "x" * 300_000)
        names = [*[None] * (ROWS - 1), "last"]
        dataset = make(texts, ids=names.__getitem__, destination_format="jsonl", rows_per_part=ROWS)
        assert dataset.to_arrow()["id"].to_pylist() == names

    def test_may_have_rows_above_a_mebibyte(self, make: Make) -> None:
        dataset = make({3: "x" * 3_000_000}, destination_format="jsonl")
        assert len(dataset.to_arrow()["response"][3].as_py()) == 3_000_000
        assert dataset.sample(ROWS).num_rows == ROWS

    def test_may_have_a_column_that_is_null_everywhere(self, make: Make) -> None:
        dataset = make({}, ids=lambda _: None, destination_format="jsonl")
        assert dataset.to_arrow()["id"].null_count == ROWS


class TestSample:
    @KINDS
    def test_has_the_same_rows_for_the_same_seed(self, make_anywhere: Make, kind: str) -> None:
        dataset = make_anywhere({3: failure()}, destination_format=kind)
        taken = [dataset.sample(5, seed=seed) for seed in (1, 1, 2)]
        assert taken[0].equals(taken[1])
        assert not taken[0].equals(taken[2])
        rows = dataset.to_arrow().to_pylist()
        sample = taken[0].to_pylist()
        assert [row for row in rows if row in sample] == sample  # in the order of the dataset
        assert len(sample) == 5

    def test_differs_without_a_seed(self, make: Make) -> None:
        dataset = make({}, rows=200)
        assert len({str(dataset.sample(9, columns=["n"])["n"].to_pylist()) for _ in range(5)}) > 1

    @KINDS
    def test_has_all_rows_where_there_are_no_more(self, make_anywhere: Make, kind: str) -> None:
        dataset = make_anywhere({}, destination_format=kind)
        assert dataset.sample(99).equals(dataset.to_arrow())
        assert dataset.sample(0).schema.names == dataset.to_arrow().schema.names
        assert dataset.sample(99, columns=["n", "id"]).column_names == ["n", "id"]

    def test_reads_only_the_files_of_its_rows(self, disk: LocalFolder) -> None:
        rows = [{"n": number} for number in range(ROWS)]
        manifest = publish(disk, [part(disk, rows)], ROWS, rows_per_part=5)
        dataset = Dataset(manifest)
        (number,) = dataset.sample(1, seed=4, columns=["n"])["n"].to_pylist()
        kept = {0, number // 5}  # the first one has the schema
        for place in {*range(4)} - kept:
            disk.write(f"{manifest.uri.removeprefix(f'{disk.uri}/')}/part-{place:05d}.parquet", b"damaged")
        assert dataset.sample(1, seed=4, columns=["n"])["n"].to_pylist() == [number]


class TestCompare:
    @KINDS
    @pytest.mark.parametrize("id_column", ["id", None])
    def test_tells_what_became_of_each_row(
        self, make_anywhere: Make, kind: str, id_column: str | None
    ) -> None:
        """By ids, and by positions in the input, which failed rows must not shift."""
        fields = {"destination_format": kind, "id_column": id_column}
        before = make_anywhere({2: failure(), 5: "old"}, **fields)
        now = make_anywhere({0: failure(), 5: "new", 7: "new, too"}, response_column="answer", **fields)
        found = now.compare(before)
        assert (found.added, found.removed, found.same, found.changed) == (1, 1, ROWS - 4, 2)
        prefix = "r" if id_column else ""
        assert found.table.to_pylist() == [
            {"id": f"{prefix}5", "change": "changed", "previous": "old", "response": "new"},
            {"id": f"{prefix}7", "change": "changed", "previous": "text 7", "response": "new, too"},
            {"id": f"{prefix}2", "change": "added", "previous": None, "response": "text 2"},
            {"id": f"{prefix}0", "change": "removed", "previous": "text 0", "response": None},
        ]
        same = now.compare(now)
        assert (same.same, same.table.num_rows) == (ROWS - 1, 0)

    def test_finds_rows_that_have_moved(self, make: Make) -> None:
        before = make({}, id_column="id")
        moved = {number: f"text {(number + 3) % ROWS}" for number in range(ROWS)}
        now = make(moved, id_column="id", ids=lambda number: f"r{(number + 3) % ROWS}")
        assert now.compare(before).same == ROWS

    def test_shows_a_bounded_number_of_rows(self, make: Make) -> None:
        found = make(dict.fromkeys(range(9), "new")).compare(make({}), limit=2)
        assert (found.changed, found.table["id"].to_pylist()) == (9, ["0", "1"])

    def test_takes_columns_by_name(self, make: Make) -> None:
        now, before = make({1: "new"}, id_column="id"), make({})
        with pytest.raises(
            DatasetError, match="are named by column 'id', and of the previous one by their pos"
        ):
            now.compare(before)
        assert now.compare(before, id_column="n").table["id"].to_pylist() == ["1"]
        assert now.compare(before, id_column="n", response_column="finish_reason").same == ROWS

    def test_needs_dead_letters_for_positions(self, disk: LocalFolder) -> None:
        results = [response(), failure()]
        manifest = publish(disk, [part(disk, [{"n": 0}, {"n": 1}], results)], 2)
        dataset = Dataset(manifest)
        disk.delete([entry.path for entry in disk.list("dead_letter")])
        with pytest.raises(
            DatasetError, match=r"has 0 rows, but the manifest says 1, so positions .* unknown"
        ):
            dataset.compare(dataset)
        assert dataset.compare(dataset, id_column="n").same == 1


def test_what_is_refused(make: Make, assert_sentences: AssertSentences) -> None:
    whole, without = make({}), make({}, ids=lambda number: None if number == 3 else str(number))

    def refused(call: Callable[[Dataset, Dataset], Any]) -> None:
        call(whole, without)

    assert_sentences(refused, DatasetError, whole=whole.manifest.uri, without=without.manifest.uri)


class TestDeadLetters:
    def test_are_a_table_of_what_failed(self, make_anywhere: Make) -> None:
        dataset = make_anywhere({3: failure("parse", "no JSON"), 9: failure("engine", "it broke")})
        table = dataset.dead_letters()
        assert table.to_pylist()[0] == {
            "ordinal": 3, "id": None, "step": "parse", "reason": "no JSON", "request": '{"prompt":"p"}',
            "response": None, "row": {"id": "r3", "n": 3},
        }  # fmt: skip
        assert table["ordinal"].to_pylist() == [3, 9]
        assert make_anywhere({}).dead_letters().schema.names == table.schema.names

    def test_keep_values_of_several_types(self, disk: LocalFolder) -> None:
        place = LocalFolder(f"{disk.uri}/letters")
        lines = [
            b'{"ordinal":0,"id":"a","step":"read","reason":"odd","request":"{","row":null}\n',
            b'{"ordinal":1,"step":"postprocess","reason":"odd","response":"yes","row":{"x":1,"y":[1]}}\n',
            b'{"ordinal":2,"step":"engine","reason":"odd","row":{"x":"one","z":true}}\n',
        ]
        place.write("part-00000.jsonl", b"".join(lines))
        manifest = publish(disk, [part(disk, [{"n": 0}] * 3, [failure()] * 3)], 3)
        table = Dataset(manifest.model_copy(update={"dead_letter_uri": place.uri})).dead_letters()
        assert table["row"].to_pylist() == [
            None,
            {"x": "1", "y": [1], "z": None},
            {"x": '"one"', "y": None, "z": True},
        ]
        assert table["response"].to_pylist() == [None, "yes", None]
        assert table["id"].to_pylist() == ["a", None, None]

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"no JSON\n", "has a line that is not a dead letter"),
            (b"[1]\n", "has a line that is not a dead letter"),
            (b'{"ordinal": 1}\n', r"is not a dead letter \(it lacks a field\); remove the file"),
            (b"", "has 0 rows, but the manifest says 1; run the batch inference again"),
        ],
        ids=["text", "list", "other", "gone"],
    )
    def test_of_a_changed_file_are_an_error(self, disk: LocalFolder, content: bytes, why: str) -> None:
        manifest = publish(disk, [part(disk, [{"n": 0}], [failure()])], 1)
        (file,) = disk.list("dead_letter")
        disk.write(file.path, content)
        with pytest.raises(DatasetError, match=why):
            Dataset(manifest).dead_letters()


class TestFrames:
    @KINDS
    def test_have_all_rows(self, make_anywhere: Make, kind: str) -> None:
        polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
        dataset = make_anywhere({4: failure()}, destination_format=kind)
        rows = dataset.to_arrow().to_pylist()
        lazy = dataset.to_polars()
        assert isinstance(lazy, polars.LazyFrame)
        assert lazy.collect().to_dicts() == rows
        few = lazy.filter(polars.col("n") > 15).select("n", "response").collect()
        assert few.to_dicts() == [
            {"n": row["n"], "response": row["response"]} for row in rows if row["n"] > 15
        ]
        frame = dataset.to_pandas()
        assert isinstance(frame, pandas.DataFrame)
        assert frame.to_dict("records") == rows
        typed = dataset.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)
        assert typed["n"].dtype == pandas.Int64Dtype()


@KINDS
def test_a_dataset_without_rows_is_read_in_each_way(folder: Folder, kind: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    manifest = publish(folder, [], 0, schema=schema, destination=folder.uri, destination_format=kind)
    dataset = opened(manifest, folder)
    names = [column.name for column in manifest.columns]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert dataset.to_arrow().schema.names == names
        assert dataset.to_polars().collect().columns == names
        assert list(dataset.to_pandas().columns) == names
    assert dataset.sample(3).num_rows == dataset.dead_letters().num_rows == 0
    assert dataset.compare(dataset).table.num_rows == 0
