# SPDX-License-Identifier: Apache-2.0
"""Replicas read the input from storage once in all, for any number of replicas and any format."""

from __future__ import annotations

import asyncio
import io
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.input import opening
from airflow_provider_raybatch.job.replica import contents as contents_module
from airflow_provider_raybatch.job.replica.replica import Replica
from airflow_provider_raybatch.job.row_order.grouping import ByPrefix
from airflow_provider_raybatch.job.row_order.rows_to_do import Input
from airflow_provider_raybatch.storage.file import REQUEST_BYTES, Entry, RangedFile
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support import replicas as replicas_module
from tests.support.replicas import Place, in_buckets, lines, until, work


class Store(LocalFolder):
    """A local folder that reads like an object store: each read is a request of a full buffer."""

    asked: ClassVar[int] = 0

    def read_range(self, path: str, start: int, length: int) -> bytes:
        content = super().read_range(path, start, length)
        Store.asked += len(content)
        return content

    def open(self, path: str, size: int | None = None) -> Any:
        size = self._path(path).stat().st_size if size is None else size
        return io.BufferedReader(RangedFile(self, Entry(path, size, "")), REQUEST_BYTES)


class Reference:
    """Stands for a reference to an object in Ray's object store."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _texts(count: int) -> Iterator[str]:
    # Random text compresses badly, so a row group keeps its size.
    numbers = random.Random(7)
    return (f"{numbers.getrandbits(12000):x}" for _ in range(count))


def parquet_of_row_groups(folder: Path, rows: int = 100) -> None:
    """Write two files of 2,500 rows, without statistics, which would repeat texts in the footers."""
    for name in "ab":
        table = pa.table({"text": list(_texts(2500)), "n": range(2500), "label": ["x"] * 2500})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=rows, write_statistics=False)


def small_tables(folder: Path) -> None:
    for number in range(150):
        pq.write_table(pa.table({"text": list(_texts(20))}), folder / f"{number:03d}.parquet")


def many_small_files(folder: Path, count: int = 150) -> None:
    for number in range(count):
        (folder / f"{number:03d}.jsonl").write_text(lines({"text": f"{'word ' * 100}{number}"}))


def one_large_text(folder: Path) -> None:
    """Write one file of eight pieces of 1,024 rows."""
    (folder / "x.jsonl").write_text(lines(*({"text": f"{number:0900d}"} for number in range(8 * 1024))))


def one_large_table(folder: Path) -> None:
    rows = "".join(f"{number:0900d},{number}\n" for number in range(8 * 1024))
    (folder / "x.csv").write_text(f"text,n\n{rows}")


def stored(make: Callable[[Path], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Let files lie in a store that counts, and let replicas lend each other what they read."""
    monkeypatch.setattr(opening, "open_place", lambda uri, *access: (Store("/"), uri.lstrip("/")))
    place = Place(folder, monkeypatch, batch=64)
    place.source = folder / "in"
    place.source.mkdir()
    make(place.source)
    return place


KINDS = (parquet_of_row_groups, small_tables, many_small_files, one_large_text, one_large_table)
MORE = pytest.mark.thorough("files of each kind with one and with eight replicas; with two always")


@pytest.mark.parametrize(
    ("make", "replicas"),
    [
        *((make, 2) for make in KINDS),
        *((parquet_of_row_groups, replicas) for replicas in (1, 8)),
        *(pytest.param(make, replicas, marks=MORE) for make in KINDS[1:] for replicas in (1, 8)),
    ],
)
def test_the_input_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, replicas: int
) -> None:
    place = stored(make, tmp_path, monkeypatch)
    all_of_them = several(place, monkeypatch, replicas)
    Store.asked = 0
    size = work_together(place, all_of_them)
    # A replica reads a piece again if the rows of another replica are late in the object store. That is rare,
    # except on a busy machine and at the end of the input.
    again = max(place.coordinator._input.sizes) * (replicas - 1)
    assert Store.asked <= 1.1 * size + again


def test_what_is_read_leaves_the_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 row groups, each for several replicas, the store holds few at a time, and none in the end."""
    place = stored(lambda folder: parquet_of_row_groups(folder, 250), tmp_path, monkeypatch)
    there: weakref.WeakSet[Reference] = weakref.WeakSet()
    most = 0

    def put(contents: dict[int, Any]) -> dict[int, list[Any]]:
        nonlocal most
        references = {piece: [Reference(content)] for piece, content in contents.items()}
        there.update(one for (one,) in references.values())
        most = max(most, len(there))
        return references

    monkeypatch.setattr(contents_module, "_put", put)
    monkeypatch.setattr(contents_module, "_got", lambda references: references[0].content)
    work_together(place, several(place, monkeypatch, 4))
    assert 0 < most < 12
    assert not there


@pytest.mark.parametrize("make", [parquet_of_row_groups, one_large_text])
def test_rows_in_buckets_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """By the tasks that bring them together; replicas read none of them from storage."""
    place, read = stored(make, tmp_path, monkeypatch), [0]

    def counted(*arguments: Any, **named: Any) -> Input:
        Store.asked = 0
        made = in_buckets(*arguments, **named)
        read[0] = Store.asked
        return made

    place.grouping = ByPrefix(10, buckets=3)
    monkeypatch.setattr(replicas_module, "in_buckets", counted)
    all_of_them = several(place, monkeypatch, 8)
    Store.asked = 0
    size = work_together(place, all_of_them)
    assert read[0] <= 1.1 * size
    assert Store.asked == 0


def several(place: Place, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Replica]:
    """Start replicas of different speeds."""
    all_of_them = []
    for number in range(count):
        engine_args = {"seconds_per_token": 0.0005 * (1 + number % 3)}
        fields = {"rows_in_flight": 100, "replicas": count, "engine_args": engine_args}
        all_of_them.append(place.replica(actor=f"actor-{number}", engine="echo", **fields))
    return all_of_them


def work_together(place: Place, replicas: Sequence[Replica]) -> int:
    """Let replicas do all rows; return the bytes of the input."""

    async def story() -> None:
        await asyncio.gather(*(work(replica) for replica in replicas))

    asyncio.run(story())
    assert place.coordinator._queue.is_finished
    return sum(file.stat().st_size for file in place.source.iterdir())


def test_rows_that_are_given_back_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although all rows of their files had been given, so that no other replica would ask for them."""
    place = stored(lambda folder: many_small_files(folder, 70), tmp_path, monkeypatch)
    fields: dict[str, Any] = {"engine": "echo", "rows_in_flight": 20, "replicas": 2, "flush_interval": 0.1}
    fields["engine_args"] = {"seconds_per_token": 0.01}
    first = place.replica(**fields)
    Store.asked = 0

    async def story() -> None:
        working = asyncio.ensure_future(work(first))
        await until(lambda: first.inflight is not None and len(first.inflight.waiting) == 50)
        asked = Store.asked
        second = place.replica(actor="another", **fields)
        Store.asked = asked  # a place surveys its source for each replica
        await asyncio.gather(working, work(second))
        assert second.report.rows

    asyncio.run(story())
    assert Store.asked == sum(file.stat().st_size for file in place.source.iterdir())
