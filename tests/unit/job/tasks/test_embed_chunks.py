# SPDX-License-Identifier: Apache-2.0
"""Whole jobs that embed texts in chunks: a row of the dataset for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import open_dataset
from airflow_provider_raybatch.job.output.rows import dataset_rows
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

ROWS = [
    {"id": "a", "text": "one two three four five", "source": "x"},
    {"id": "b", "text": "six", "source": "y"},
    {"id": "c", "text": "one two three four five", "source": "z"},
]


def embed(place: EchoPlace, number: int = 0, rows: Any = ROWS, **fields: Any) -> BatchManifest:
    """Run a job over rows into a destination of its own."""
    place.folder = LocalFolder(str(place.root / f"out-{number}"))
    args = {"embedding_size": 8, "request_log": str(place.root / "log"), **fields.pop("engine_args", {})}
    other = {"prompt": None, "prompt_column": "text"} if "prompt" not in fields else {}
    asked = {"model_task": "embed", "chunk_tokens": 2, "engine_args": args, **other, **fields}
    return place.job(number, rows, **asked)


def test_each_chunk_is_a_row_with_the_input_of_its_row(place: EchoPlace) -> None:
    manifest = embed(place, id_column="id", preserve_order=True)
    assert [(column.name, column.type) for column in manifest.columns] == [
        ("id", "string"),
        ("source", "string"),
        ("embedding", "fixed_size_list<element: float>[8]"),
        ("input_tokens", "int64"),
        ("chunk_index", "int64"),
        ("chunk_text", "string"),
        ("chunk_start", "int64"),
    ]
    shown = ("id", "source", "chunk_index", "chunk_text", "chunk_start", "input_tokens")
    assert [tuple(row[name] for name in shown) for row in place.rows(manifest)] == [
        ("a", "x", 0, "one two", 0, 2),
        ("a", "x", 1, "three four", 8, 2),
        ("a", "x", 2, "five", 19, 1),
        ("b", "y", 0, "six", 0, 1),
        ("c", "z", 0, "one two", 0, 2),
        ("c", "z", 1, "three four", 8, 2),
        ("c", "z", 2, "five", 19, 1),
    ]
    assert (manifest.counts.ok, manifest.counts.duplicates, manifest.counts.chunks) == (3, 1, 7)
    assert ([file.rows for file in manifest.files], manifest.tokens.input) == ([7], 11)
    assert (manifest.chunk_column, manifest.response_column) == ("chunk_index", "embedding")
    assert place.generated() == 2


def test_a_chunk_has_the_vector_of_its_text(place: EchoPlace) -> None:
    made = {row["chunk_text"]: row["embedding"] for row in place.rows(embed(place))}
    texts = [{"text": text} for text in made]
    whole = embed(place, 1, texts, chunk_tokens=None)
    assert {row["text"]: row["embedding"] for row in place.rows(whole)} == made


def test_a_column_that_names_the_rows_stays(place: EchoPlace) -> None:
    manifest = embed(place, rows=ROWS[:2], id_column="text")
    assert {row["text"] for row in place.rows(manifest)} == {"one two three four five", "six"}


def test_overlap_and_template_and_names(place: EchoPlace) -> None:
    fields = {"prompt": "{row.source}: {row.text}", "chunk_overlap_tokens": 1, "output_prefix": "v_"}
    manifest = embed(place, 0, ROWS[:1], **fields)
    rows = place.rows(manifest)
    assert [row["v_chunk_text"] for row in rows] == [
        "x: one", "one two", "two three", "three four", "four five",
    ]  # fmt: skip
    assert {row["text"] for row in rows} == {"one two three four five"}
    assert manifest.chunk_column == "v_chunk_index"


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_readers_find_as_many_rows_as_there_are_chunks(place: EchoPlace, format: str) -> None:
    pytest.importorskip("duckdb")
    dataset = open_dataset(embed(place, destination_format=format, embed_dtype="float16").manifest_uri)
    assert dataset.to_arrow().num_rows == len(dataset.to_pandas()) == 7
    assert dataset.duckdb().aggregate("count(*)").fetchall() == [(7,)]
    assert dataset.sample(9).num_rows == 7
    assert repr(dataset).endswith("7 rows in 1 file>")


@pytest.mark.parametrize("id_column", [None, "id"])
def test_datasets_are_compared_chunk_by_chunk(place: EchoPlace, id_column: str | None) -> None:
    before = embed(place, 0, id_column=id_column, max_errors=1, engine_args={"fail_pattern": "six"})
    rows = [ROWS[0], ROWS[1], {"id": "c", "text": "one two other words", "source": "z"}]
    after = embed(place, 1, rows, id_column=id_column)
    changes = open_dataset(after.manifest_uri).compare(open_dataset(before.manifest_uri))
    assert (changes.same, changes.changed, changes.added, changes.removed) == (4, 1, 1, 1)
    named = changes.table.to_pandas()
    names = ["c#1", "b#0", "c#2"] if id_column else ["2#1", "1#0", "2#2"]
    assert list(named["id"]) == names


def test_no_text_is_too_long_for_its_chunks(place: EchoPlace) -> None:
    manifest = embed(place, 0, [{"text": "w " * 999}], engine_args={"max_model_len": 2})
    assert manifest.counts.chunks == 500


def test_a_dataset_without_rows_has_its_columns(place: EchoPlace) -> None:
    manifest = embed(place, 0, ROWS[:1], max_errors=1, engine_args={"fail_pattern": "one"})
    schema = pq.read_schema(f"{manifest.uri}/{manifest.files[0].path}")
    assert "chunk_text" in schema.names
    assert (manifest.counts.chunks, open_dataset(manifest.manifest_uri).to_arrow().num_rows) == (0, 0)


def test_whole_texts_and_chunks_share_no_answers(place: EchoPlace) -> None:
    store = str(place.root / "store")
    embed(place, 0, reuse=store)
    for number, fields in enumerate(
        [{"chunk_tokens": None}, {"chunk_tokens": 3}, {"chunk_overlap_tokens": 1}], 1
    ):
        assert embed(place, number, reuse=store, **fields).counts.reused == 0
    again = embed(place, 9, reuse=store, embed_dtype="float16", response_column="v")
    assert (again.counts.reused, again.counts.chunks) == (3, 7)
    assert {len(row["v"]) for row in place.rows(again)} == {8}


def test_a_row_fails_with_a_vector_that_is_none() -> None:
    task = task_of(spec(model_task="embed", chunk_tokens=4))
    chunks = [{"text": "a", "start": 0, "tokens": 3}, {"text": "b", "start": 9, "tokens": 4}]
    good = Response(input_tokens=7, pooled=np.ones((2, 2), np.float32), extra={"chunks": chunks})
    assert task.check(good, {}) is good
    bad = Response(
        input_tokens=7, pooled=np.array([[1, 2], [np.nan, 1]], np.float32), extra={"chunks": chunks}
    )
    failure = task.check(bad, {})
    assert isinstance(failure, RowFailure)
    assert failure.reason.startswith("chunk 1 (from character 9): the vector has numbers that are not finite")
    few = Response(pooled=np.ones((1, 2), np.float32), extra={"chunks": chunks})
    assert task.check(few, {}) == RowFailure("engine", "the engine gave no vector for each chunk")


def test_outputs_of_many_rows_are_those_of_each() -> None:
    task = task_of(spec(model_task="embed", chunk_tokens=4))
    chunks = [{"text": "a", "start": 0, "tokens": 3}, {"text": "b", "start": 9, "tokens": 4}]
    one = Response(input_tokens=7, pooled=np.array([[1, 2], [3, 4]], np.float32), extra={"chunks": chunks})
    other = Response(input_tokens=4, pooled=np.array([[5, 6]], np.float32), extra={"chunks": chunks[1:]})
    for responses in ([], [None], [one], [None, one, None, other]):
        made = task.outputs(responses)
        assert made.type == task.output_type
        made.validate(full=True)
        assert made.to_pylist() == Task.outputs(task, responses).to_pylist()


@pytest.mark.parametrize("most", [1, 40, 10**9])
def test_input_of_long_rows_is_not_repeated_all_at_once(most: int) -> None:
    """A text of a megabyte is in its row once, but in each of its thousand chunks."""
    task = task_of(spec(model_task="embed", chunk_tokens=4))
    chunk = {"text": "a", "start": 0, "tokens": 3}
    responses = [
        Response(pooled=np.ones((n, 2), np.float32), extra={"chunks": [chunk] * n}) for n in (3, 1, 4)
    ]
    good = pa.table({"ordinal": [7, 8, 9], "input": ["x" * 10] * 3, "output": task.outputs(responses)})
    count, portions = dataset_rows(good.slice(1), task, most)
    tables = list(portions)
    assert (count, sum(table.num_rows for table in tables)) == (5, 5)
    assert len(tables) == {1: 5, 40: 3}.get(most, 1)
    rows = pa.concat_tables(tables)
    assert rows["ordinal"].to_pylist() == [8, 9, 9, 9, 9]
    assert [one["chunk_index"] for one in rows["output"].to_pylist()] == [0, 0, 1, 2, 3]
