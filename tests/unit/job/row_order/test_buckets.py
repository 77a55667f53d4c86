# SPDX-License-Identifier: Apache-2.0
"""Rows whose prompts begin alike come together, each once and as it was read."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import ray

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Chunk, Source
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.request.keys import Keyer, Repetitions
from airflow_provider_raybatch.job.row_order import rows_to_do
from airflow_provider_raybatch.job.row_order.buckets import Bucket, BucketKeys, Cut, Gathered, buckets, slices
from airflow_provider_raybatch.job.row_order.grouping import ByLength, ByPrefix, Grouping
from airflow_provider_raybatch.job.row_order.rows_to_do import Input, input_of
from airflow_provider_raybatch.job.run.cpu_tasks import cut_in_tasks
from airflow_provider_raybatch.job.work import Job, WorkItem, work
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.replicas import in_buckets, lines
from tests.support.sources import look_at_source
from tests.support.specs import submitted

PREFIX = 8


def texts(documents: int, rows: int) -> list[str]:
    """Return prompts in random order, whose first characters name a document."""
    made = [f"{document:0{PREFIX}d} question {row}" for document in range(documents) for row in range(rows)]
    return random.Random(7).sample(made, len(made))


def job_of(source: Path) -> tuple[Job, Source]:
    spec = submitted(source=[str(source)], prompt="{row.text}", destination=str(source.parent / "out"))
    found = look_at_source(spec)
    out = LocalFolder(spec.destination)
    return Job(spec, found.listing, out, "parts/0", Keyer(spec, {}, Digests())), found


def jsonl(folder: Path, prompts: Sequence[str]) -> Path:
    """Write two rows that can't be read, too."""
    rows = [{"text": text, "n": number} for number, text in enumerate(prompts)]
    (folder / "x.jsonl").write_text(lines(*rows[:50], "not JSON", *rows[50:], "nor this"))
    return folder / "x.jsonl"


def csv(folder: Path, prompts: Sequence[str]) -> Path:
    table = pa.table({"text": prompts, "n": range(len(prompts))})
    pyarrow.csv.write_csv(table, folder / "x.csv")
    return folder / "x.csv"


def parquet(folder: Path, prompts: Sequence[str]) -> Path:
    """Write two partitions of several row groups, with a column that Arrow can't take rows of."""
    for part in range(2):
        own = prompts[part::2]
        table = pa.table({
            "text": own,
            "view": pa.array(own, pa.string_view()),
            "list": [[text] for text in own],
        })
        place = folder / "in" / f"day={part}"
        place.mkdir(parents=True)
        pq.write_table(table, place / "x.parquet", row_group_size=60)
    return folder / "in"


@pytest.mark.parametrize("make", [jsonl, csv, parquet])
def test_a_row_is_in_its_bucket_as_it_was_read(
    tmp_path: Path, make: Callable[[Path, Sequence[str]], Path]
) -> None:
    prompts = texts(documents=40, rows=10)
    job, source = job_of(make(tmp_path, prompts))
    done = np.arange(source.rows) % 5 == 3
    todo = in_buckets(job, source, done, ByPrefix(PREFIX, buckets=4), at_once=50)
    reader = Reader(job.listing, None, None)
    expected: dict[int, Any] = {}
    for chunk in source.chunks(10_000):
        read = reader.read(chunk)
        for place, row in enumerate(read.rows):
            expected[chunk.ordinal + place] = row, read.columns().slice(place, 1)
    found: list[int] = []
    for bucket in todo.chunks:
        assert isinstance(bucket, Bucket)
        assert bucket.ordinal == len(found)
        wanted = bucket.ordinals[::-1].astype(np.int64)
        for ordinal, (rows, place, own) in zip(
            wanted.tolist(), Gathered(bucket.slices).rows(reader, wanted), strict=True
        ):
            row, columns = expected[ordinal]
            assert (own, rows.rows[place]) == (ordinal, row)
            assert rows.columns().slice(place, 1).equals(columns.select(rows.columns().column_names))
        found += bucket.ordinals.tolist()
    assert sorted(found) == np.flatnonzero(~done).tolist()
    begins = [
        row.get("text", "")[:PREFIX] if isinstance(row := expected[one][0], dict) else "" for one in found
    ]
    changes = sum(one != other for one, other in itertools.pairwise(begins))
    assert changes == len(set(begins)) - 1


def digested(prompts: Sequence[str]) -> list[BucketKeys]:
    """Return what a task finds of a single bucket."""
    digests = [zlib.crc32(text.encode()) for text in prompts]
    return [BucketKeys(np.arange(len(prompts), dtype=np.uint32), np.array(digests, np.uint32))]


def test_a_prefix_of_very_many_rows_has_several_buckets() -> None:
    """A replica would not have the memory for all of them."""
    tasks = [digested(["same"] * rows) for rows in (3, 4, 0, 2, 9, 1)]
    made = buckets(tasks, [[f"slice {task}"] for task in range(len(tasks))], most=7)
    assert [bucket.slices for bucket in made] == [
        ("slice 0", "slice 1"),
        ("slice 3",),
        ("slice 4",),
        ("slice 5",),
    ]
    assert [(bucket.ordinal, bucket.rows) for bucket in made] == [(0, 7), (7, 2), (9, 9), (18, 1)]


def test_a_row_that_another_call_put_elsewhere_is_missed(tmp_path: Path) -> None:
    job, source = job_of(jsonl(tmp_path, texts(2, 2)))
    (found, *made) = slices(
        work(source, 100, np.zeros(source.rows, np.bool_)), Cut(job, ByPrefix(PREFIX, 1), np.dtype("u4"))
    )
    (bucket,) = buckets([found], [made], most=100)
    gathered = Gathered(bucket.slices)
    with pytest.raises(RaybatchError, match="make it give the same for the same row"):
        gathered.rows(Reader(job.listing, None, None), np.array([0, source.rows]))
    with pytest.raises(RaybatchError, match="make it give the same"):
        Gathered([]).rows(Reader(job.listing, None, None), np.array([0]))


def test_repetitions_are_found_under_the_numbers_of_the_queue() -> None:
    """And rows that a lost replica had written."""
    ordinals = np.array([40, 10, 30, 20], np.uint8)
    together = [Bucket(0, ordinals[:2], ()), Bucket(2, ordinals[2:], ())]
    repetitions = Repetitions(np.array([10, 20, 99]), np.array([1, 2, 3], np.int32))
    todo = rows_to_do.in_buckets(together, 2.5, repetitions)
    assert todo.repetitions == {1: 1, 3: 2}
    assert todo.sizes == [5, 5]
    assert todo.pieces().left.tolist() == [2, 2]
    assert todo.numbers(np.array([20, 40])).tolist() == [0, 3]


def test_the_driver_keeps_four_bytes_a_row_and_needs_twelve() -> None:
    rows = 100_000
    found = [BucketKeys(np.arange(rows, dtype=np.uint32), np.zeros(rows, np.uint32))]
    (bucket,) = buckets([found], [[None]], most=rows)
    assert bucket.ordinals.nbytes == 4 * rows
    assert sum(array.nbytes for array in vars(found[0]).values()) == 8 * rows


@pytest.mark.parametrize(
    ("items", "most", "sizes"),
    [
        # Many small files, or one large chunk.
        ([WorkItem(Chunk(0, 0, rows, -1, 0, 0)) for rows in (50, 60, 30, *[1] * 100)], 100, [1, 12, 64, 26]),
        # Many chunks with few rows left, since each task makes a slice for every bucket.
        ([WorkItem(Chunk(0, first, 4096, -1, 0, 0), ((0, 4000),)) for first in range(10)], 480, [5, 5]),
    ],
)
def test_tasks_read_about_as_many_rows(items: list[WorkItem], most: int, sizes: list[int]) -> None:
    assert [len(group) for group in rows_to_do._groups(items, most)] == sizes


LENGTHS = (20, 40)
BY_PREFIX, BY_LENGTH = ByPrefix(2000, 1), ByLength(LENGTHS, decks=2)


@pytest.mark.parametrize(
    ("replicas", "rows", "megabytes", "room", "prefix", "lengths", "found"),
    [
        (1, 400, 1, 2**30, 2000, (), None),  # one order of a replica that sorts it
        (1, 401, 1, 2**30, 2000, (), BY_PREFIX),
        (2, 400, 1, 2**30, 2000, LENGTHS, BY_PREFIX),
        (2, 400, 600, 2**30, 2000, (), None),  # more than half of the object stores
        (2, 400, 8192, 2**40, 2000, (), ByPrefix(2000, 128)),
        (2, 400, 8193, 2**40, 2000, (), None),
        (2, 400, 1, 2**30, 0, (), None),
        (1, 400, 1, 2**30, 0, LENGTHS, None),
        (2, 9, 1, 2**30, 0, LENGTHS, BY_LENGTH),
        (2, 800, 256, 2**30, 0, LENGTHS, BY_LENGTH),
        (2, 800, 257, 2**30, 0, LENGTHS, None),  # more than four CPUs read at one go
        (2, 1600, 1, 2**30, 0, LENGTHS, ByLength(LENGTHS, decks=2, dealt=0.5, others=8)),
        (1, 1600, 2, 2**30, 0, LENGTHS, ByLength(LENGTHS, decks=1, dealt=0.25, others=12)),
        (1, 1600, 1, 2**30, 0, LENGTHS, ByLength(LENGTHS, decks=1, dealt=0.25, others=8)),  # of 128 KiB
        (2, 400_000, 256, 2**30, 0, LENGTHS, ByLength(LENGTHS, decks=2, dealt=0.002, others=512)),
        (2, 400_001, 256, 2**30, 0, LENGTHS, None),  # more rows than four CPUs read in seconds
        (1000, 10**5, 1, 2**30, 0, LENGTHS, ByLength(LENGTHS, decks=512)),
    ],
)
def test_rows_that_may_come_apart_are_brought_together(
    monkeypatch: pytest.MonkeyPatch,
    replicas: int,
    rows: int,
    megabytes: int,
    room: int,
    prefix: int,
    lengths: tuple[int, ...],
    found: Grouping | None,
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"object_store_memory": room, "CPU": 4.0})
    plan = Plan(replicas, 1, 1, None, 64, 8, {}, rows_in_engine=100)
    todo = Input([Chunk(0, 0, rows, 0, 0, rows)], [megabytes * 2**20], np.packbits(np.zeros(rows, np.bool_)))
    assert rows_to_do.grouping_for(todo, plan, prefix, lengths) == found


@pytest.mark.parametrize(("files", "found"), [(256, True), (257, False)])
def test_very_many_files_are_not_read_for_their_lengths(
    monkeypatch: pytest.MonkeyPatch, files: int, found: bool
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"object_store_memory": 2**30, "CPU": 4.0})
    plan = Plan(2, 1, 1, None, 64, 8, {}, rows_in_engine=100)
    chunks = [Chunk(file, file, 1, 0, 0, 9) for file in range(files)]
    todo = Input(chunks, [9] * files, np.packbits(np.zeros(files, np.bool_)))
    assert (rows_to_do.grouping_for(todo, plan, 0, LENGTHS) is not None) is found


def test_a_few_rows_are_cut_by_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's process would take longer to start than the engines wait."""
    job, source = job_of(jsonl(tmp_path, texts(20, 10)))
    resolved = np.zeros(source.rows, np.bool_)
    monkeypatch.setattr(ray, "put", lambda slices: slices)
    grouping = ByLength(LENGTHS, decks=3)
    todo = rows_to_do.regrouped(
        job, work(source, 50, resolved), input_of(source, resolved), grouping, cut_in_tasks
    )
    assert [chunk.rows for chunk in todo.chunks] == [68, 67, 67]
    assert todo.pieces().in_order
    assert sum(todo.sizes) == pytest.approx(source.listing.files[0].size, abs=3)
