# SPDX-License-Identifier: Apache-2.0
"""Compaction makes the store smaller and changes no answer, also beside readers and writers."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.reuse.store import compaction, segment
from airflow_provider_raybatch.job.reuse.store.compaction import GRACE, MANY, surviving
from airflow_provider_raybatch.job.reuse.store.segment import FOREVER, Entries, concat
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.responses import DAY, START, Faulty, Shop, indexed, raising, sorted_keys, stored, table


def fill(shop: Shop, submissions: int, rows: int = 20) -> dict[object, tuple[str, str]]:
    """Add one segment for each submission, and return the expected answers."""
    for number in range(submissions):
        shop.store().add(f"s{number}", [table(range(number * rows, (number + 1) * rows))])
    return {name: (f"to {name}", f"s{name // rows}") for name in range(submissions * rows)}


class TestMerging:
    def test_many_segments_become_one(self, shop: Shop) -> None:
        answers = fill(shop, 5)
        done = shop.store().compact()
        assert (done.merged, done.made, done.deleted) == (5, 1, 0)
        assert len(shop.folder.list("v1/index")) == 1
        assert shop.answers(range(200)) == answers
        again = shop.store().compact()
        assert (again.merged, again.made, again.deleted) == (0, 0, 0)
        assert shop.notices == []

    def test_adding_compacts_by_itself(self, local: Shop) -> None:
        answers = fill(local, MANY + 1)
        assert len(local.folder.list("v1/index")) == 1
        assert local.answers(answers) == answers

    def test_segments_that_are_large_enough_are_left_alone(
        self, local: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = fill(local, 3)
        large = local.folder.list("v1/index")[0]
        monkeypatch.setattr(compaction, "_SMALL_BYTES", large.size)
        local.store().add("small", [table(["a"])])
        local.store().add("small too", [table(["b"])])
        assert local.store().compact().merged == 2
        assert large in local.folder.list("v1/index")
        assert local.answers(answers) == answers

    def test_a_merge_makes_segments_of_bounded_size(
        self, local: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = fill(local, 10, rows=100)
        monkeypatch.setattr(compaction, "ROWS_PER_SEGMENT", 130)
        monkeypatch.setattr(segment, "ROWS_PER_GROUP", 50)
        made = local.store().compact().made
        assert 1000 / 130 <= made <= 2 * 1000 / 130
        assert local.answers(answers) == answers
        assert local.store().size().rows == 1000

    def test_a_failing_compaction_does_not_undo_an_add(self, disk: LocalFolder) -> None:
        fill(Shop(disk), MANY)
        shop = Shop(Faulty(disk, "v1/index/merged", raising("write")))
        assert shop.store().add("last", [table(["last"])]) == 1
        assert len(shop.notices) == 1
        assert "(while compacting the store)" in shop.notices[0]
        assert Shop(disk).answers(["last", 3]) == {"last": ("to last", "last"), 3: ("to 3", "s0")}


class TestBesideOthers:
    def test_of_two_compactions_the_slower_takes_back_what_it_wrote(
        self, disk: LocalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = fill(Shop(disk), 4, rows=100)
        monkeypatch.setattr(compaction, "ROWS_PER_SEGMENT", 130)
        once = threading.Event()

        def compact(operation: str, path: str) -> None:
            if operation == "write" and not once.is_set():
                once.set()
                # The first of several segments is about to be written.
                assert Shop(disk).store().compact().merged == 4

        slower = Shop(Faulty(disk, "merged", compact)).store().compact()
        assert (slower.merged, slower.made) == (0, 0)
        assert Shop(disk).answers(answers) == answers
        assert Shop(disk).store().size().rows == len(answers)

    def test_index_that_never_rests_is_a_retryable_error(self, disk: LocalFolder) -> None:
        fill(Shop(disk), 1)
        content = disk.read(indexed("s0"))
        turns = iter(range(1000))

        def change(operation: str, path: str) -> None:
            if operation == "list":
                disk.write(f"v1/index/x{next(turns)}.parquet", content)

        with pytest.raises(StorageError, match=r"reuse: .* it changes faster than it can be read"):
            Shop(Faulty(disk, "v1/index", change)).answers([1])


class TestDropping:
    def test_what_expired_goes_a_grace_period_later_with_its_data(self, shop: Shop) -> None:
        shop.store(max_age=2 * DAY).add("short", [table([1, 2])])
        shop.store().add("long", [table([2, 3])])
        shop.now += 2 * DAY + GRACE - 10
        assert shop.store().compact().deleted == 0
        # Key 2 is kept once: the other submission's answer lives longer.
        assert shop.store().size().rows == 3
        shop.now += 20
        assert shop.store().compact().deleted == 1
        assert {e.path for e in shop.folder.list("v1/data")} == {
            stored("long"),
            "v1/data/long/_whole",
            "v1/data/short/_whole",
        }
        size = shop.store().size()
        assert (size.rows, size.expired, size.data_files) == (2, 0, 1)
        assert shop.answers([1, 2, 3]) == {2: ("to 2", "long"), 3: ("to 3", "long")}

    def test_all_of_it_may_expire(self, local: Shop) -> None:
        local.store(max_age=DAY).add("s", [table([1])])
        local.now += 3 * DAY
        done = local.store().compact()
        assert (done.merged, done.made, done.deleted) == (1, 0, 1)
        assert [entry.path for entry in local.folder.list("v1")] == ["v1/data/s/_whole"]
        assert local.answers([1]) == {}

    def test_data_that_is_waiting_for_its_index_is_kept(self, folder: Folder) -> None:
        # The state of an add between its data and its index, where it may also be killed.
        with pytest.raises(StorageError):
            Shop(Faulty(folder, "v1/index/", raising("write"))).store().add("s", [table([1])])
        shop = Shop(folder)
        assert shop.answers([1]) == {}
        assert shop.store().compact().deleted == 0
        assert len(folder.list("v1/data/s")) == 1
        shop.now += GRACE + 10
        assert shop.store().compact().deleted == 1
        assert folder.list("v1/data") == []

    def test_hits_that_expire_after_the_look_up_are_still_read(self, local: Shop) -> None:
        local.store(max_age=DAY).add("s", [table([1])])
        local.now += DAY - 1
        hits = local.store().lookup(sorted_keys([1]))
        local.now += 3600
        local.store().compact()
        assert sum(rows.num_rows for rows in local.store().read(hits)) == 1

    def test_hits_superseded_after_the_look_up_are_still_read(self, local: Shop) -> None:
        local.store().add("s1", [table(["a"])])
        local.now += 2 * GRACE
        reader = local.store()
        hits = reader.lookup(sorted_keys(["a"]))
        local.store().add("s2", [table(["a"])])
        local.store().compact()
        assert [row["paid_by"] for rows in reader.read(hits) for row in rows.to_pylist()] == ["s1"]

    def test_nothing_is_deleted_while_a_segment_is_unreadable(self, local: Shop) -> None:
        local.store(max_age=DAY).add("s", [table([1])])
        local.folder.write("v1/index/x.parquet", b"from the future")
        local.now += 5 * DAY
        assert local.store().compact().deleted == 0
        assert local.notices[0].startswith(
            "reuse: 1 segments of the index can't be used, so no data was deleted (for example, "
            "v1/index/x.parquet "
        )
        local.folder.delete(["v1/index/x.parquet"])
        assert local.store().compact().deleted == 1

    def test_a_foreign_data_file_is_left_alone(self, local: Shop) -> None:
        local.folder.write("v1/data/notes/x.parquet", b"mine")
        local.now += 100 * DAY
        assert local.store().compact().deleted == 0
        assert local.folder.read("v1/data/notes/x.parquet") == b"mine"


def test_add_by_a_late_clock_before_each_listing_of_a_sweep(folder: Folder) -> None:
    """Data that is added while old data is deleted stays."""
    Shop(folder).store().add("first", [table([1])])
    for number in itertools.count():
        listings = itertools.count()

        def add(
            operation: str, path: str, number: int = number, listings: itertools.count[int] = listings
        ) -> None:
            if operation == "list" and next(listings) == number:
                Shop(folder, START - 3 * DAY).store().add(f"late {number}", [table([f"a {number}"])])

        shop = Shop(Faulty(folder, "v1/", add))
        assert shop.store().compact().deleted == 0
        if next(listings) <= number:
            break
        assert Shop(folder).answers([f"a {number}"]) == {f"a {number}": (f"to a {number}", f"late {number}")}
    assert number >= 3


NOW = START + 100 * DAY
times = st.one_of(st.integers(0, 100), st.just(100)).map(lambda day: START + day * DAY)
expiries = st.one_of(st.just(FOREVER), st.integers(0, 120).map(lambda day: START + day * DAY))
facts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), times, expiries), max_size=12
)


@given(facts)
def test_compacted_store_answers_every_look_up_as_before(facts: list[tuple[int, int, int, int, int]]) -> None:
    entries = _entries(facts)
    kept = surviving(entries, NOW, GRACE)
    there = _facts(kept)
    assert there == sorted(there, key=lambda fact: (fact[0], -fact[3]))
    assert set(there) <= set(_facts(entries))
    for moment in (NOW, NOW + DAY, NOW + 15 * DAY, NOW + 1000 * DAY):
        for since in (0, NOW - 5 * DAY, NOW - 50 * DAY):
            for key in range(4):
                assert _best(there, key, moment, since) == _best(_facts(entries), key, moment, since)
    assert not any(until <= NOW - GRACE for *_, until in there)
    assert len({fact[:4] for fact in there}) == len(there)
    # As many entries survive where merges have doubled them.
    assert _facts(surviving(concat([entries, kept, entries]), NOW, GRACE)) == there


def _entries(facts: list[tuple[int, int, int, int, int]]) -> Entries:
    columns = np.array(facts, dtype=np.int64).reshape(-1, 5).T
    keys = np.array([b"k%015d" % key for key in columns[0]], dtype="S16")
    return Entries(keys, *columns[1:], ("a", "b", "c"))


def _facts(entries: Entries) -> list[Any]:
    keys = [int(key[1:]) for key in entries.keys.tolist()]
    columns = (entries.file, entries.row, entries.at, entries.until)
    return list(zip(keys, *(column.tolist() for column in columns), strict=True))


def _best(facts: list[Any], key: int, moment: int, since: int) -> int | None:
    """Return when the answer of a look-up was paid for."""
    return max(
        (at for k, _, _, at, until in facts if k == key and until > moment and at >= since), default=None
    )
