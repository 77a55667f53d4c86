# SPDX-License-Identifier: Apache-2.0
"""Responses are added all at once or not at all, by any number of writers."""

from __future__ import annotations

import multiprocessing
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.reuse import partitions
from airflow_provider_raybatch.job.reuse.store import compaction, data, segment
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.responses import DAY, START, Faulty, Shop, raising, table, write_much


def test_a_repeated_add_changes_nothing(shop: Shop) -> None:
    shop.store().add("s", [table(range(5))])
    before = shop.folder.list()
    shop.now += DAY
    assert shop.store().holds("s")
    assert shop.store().add("s", [table(range(5), "again")]) == 0
    assert shop.folder.list() == before


@pytest.mark.parametrize("word", [f"{START}00000", f"{START}00001", "v1/index/", "_whole"])
def test_an_add_that_broke_off_is_finished_by_its_repetition(
    folder: Folder, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "ROWS_PER_FILE", 10)
    shop = Shop(Faulty(folder, word, raising("write")))
    with pytest.raises(StorageError, match=r"^reuse: "):
        shop.store().add("s", [table(range(25))])
    again = Shop(folder)
    assert not again.store().holds("s")
    # All visible responses of the interrupted add are right.
    assert again.answers(range(25)).items() <= {n: (f"to {n}", "s") for n in range(25)}.items()
    assert again.store().add("s", [table(range(25))]) == 25
    assert again.answers(range(30)) == {n: (f"to {n}", "s") for n in range(25)}
    size = again.store().size()
    assert (size.rows, size.data_files, size.segments) == (25, 3, 1)


def test_memory_does_not_depend_on_how_many_rows_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LocalFolder(str(tmp_path))
    monkeypatch.setattr(compaction, "MANY", 100)
    monkeypatch.setattr(partitions, "_MOST_IN_MEMORY", 400_000)
    monkeypatch.setattr(segment, "ROWS_PER_SEGMENT", 10_000)
    rows, at_once = 600_000, 10_000  # many, beside what files in flight take on a busy machine
    output = pa.array([{"text": "x"}] * at_once)
    random = np.random.default_rng(1)

    def tables() -> Iterator[pa.Table]:
        for _ in range(rows // at_once):
            keys = np.frombuffer(random.bytes(16 * at_once), "S16")
            yield pa.table({"key": key_array.to_arrow(keys), "output": output})

    tracemalloc.start()
    try:
        assert Shop(folder).store().add("s", tables()) == rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(folder.list("v1/index")) == 60
    assert peak < 20 * rows


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_much, args=(str(tmp_path), number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
        assert writer.exitcode == 0
    shop = Shop(LocalFolder(str(tmp_path)))
    names = [*range(4 * 600), *(f"shared {n}" for n in range(10))]
    found = shop.answers(names)
    assert set(found) == set(names)
    assert all(found[n] == (f"to {n}", f"w{n // 600}-{n // 60 % 10}") for n in range(4 * 600))
    assert shop.notices == []
