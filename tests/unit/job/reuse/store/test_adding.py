# SPDX-License-Identifier: Apache-2.0
"""Responses are added all at once or not at all, by any number of writers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.reuse.store import data
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
