# SPDX-License-Identifier: Apache-2.0
"""A look-up reads only what it needs, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_raybatch.job.reuse.store import data, segment
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.responses import Faulty, Shop, sorted_keys, stored, table


@pytest.mark.parametrize("small_enough", [True, False])
def test_a_look_up_decodes_a_row_group_at_a_time(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, small_enough: bool
) -> None:
    monkeypatch.setattr(segment, "ROWS_PER_GROUP", 1000)
    Shop(disk).store().add("s", [table(range(20_000))])
    size = disk.list("v1/index")[0].size
    monkeypatch.setattr(segment, "_LARGEST_LOADED", size if small_enough else size - 1)
    decoded: list[int] = []

    def watch(self: segment.Segment, group: int, read: Any = segment.Segment.read) -> segment.Entries:
        entries: segment.Entries = read(self, group)
        decoded.append(len(entries))
        return entries

    monkeypatch.setattr(segment.Segment, "read", watch)
    watched = Faulty(disk, "", lambda *_: None)
    assert len(Shop(watched).store().lookup(sorted_keys(range(20_000)))) == 20_000
    assert decoded == [1000] * 20
    ranges = [length for name, _, length in watched.calls if name == "read_range"]
    if small_enough:
        # The footer, then everything in one request.
        assert ranges[-1] == size
        assert len(ranges) <= 3
    else:
        # The footer, then each row group in a request of its own.
        assert len(ranges) <= 2 + 20
        assert max(ranges[2:]) < 2 * size / 20
    assert not any(name in {"read", "open"} for name, _, _ in watched.calls)


def test_row_groups_without_a_wanted_key_are_not_read(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(data, "ROWS_PER_GROUP", 100)
    Shop(disk).store().add("s", [table(range(5000))])
    sizes = {entry.path: entry.size for entry in disk.list()}
    watched = Faulty(disk, "", lambda *_: None)
    store = Shop(watched).store()
    hits = store.lookup(sorted_keys([7, 8, "unknown"]))
    assert len(hits) == 2
    read = [length for name, _, length in watched.calls if name == "read_range"]
    assert len(read) <= 2 + 3
    watched.calls.clear()
    assert sum(rows.num_rows for rows in store.read(hits)) == 2
    read = [length for name, _, length in watched.calls if name == "read_range"]
    # Rows 7 and 8 were generated one after the other: one row group of 50, besides the footer.
    assert len(read) <= 3
    assert read[-1] < sizes[stored("s")] / 25


def test_tasks_in_work_are_as_many_as_workers() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            begun.append(number)
            yield number

    taken = in_order(lambda number: number, items(), 8)
    assert [next(taken) for _ in range(3)] == [0, 1, 2]
    assert len(begun) <= 3 + 8
    taken.close()
