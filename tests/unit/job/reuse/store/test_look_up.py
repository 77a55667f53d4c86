# SPDX-License-Identifier: Apache-2.0
"""A look-up finds stored responses by their own keys, and nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_raybatch.job.reuse.store import data, segment
from airflow_provider_raybatch.job.tasks.generate import Generate
from tests.support.responses import DAY, Shop, sorted_keys, table
from tests.support.specs import spec


def test_empty_store_has_no_hits(shop: Shop) -> None:
    assert shop.answers(range(3)) == {}
    assert shop.answers([]) == {}
    assert shop.notices == []


def test_only_stored_responses_are_found_with_their_payer(shop: Shop) -> None:
    assert shop.store().add("first", [table(range(10)), table(range(10, 15))]) == 15
    assert shop.store().add("second", [table(range(15, 20))]) == 5
    assert shop.answers(range(5, 25)) == {
        name: (f"to {name}", "first" if name < 15 else "second") for name in range(5, 20)
    }
    assert shop.notices == []


def test_the_newest_answer_wins(shop: Shop) -> None:
    shop.store().add("older", [table(range(4), "old")])
    shop.now += DAY
    shop.store().add("newer", [table([1, 2], "new")])
    shop.now -= 2 * DAY
    shop.store().add("oldest", [table(range(5), "oldest")])
    assert shop.answers(range(5)) == {
        0: ("old 0", "older"),
        1: ("new 1", "newer"),
        2: ("new 2", "newer"),
        3: ("old 3", "older"),
        4: ("oldest 4", "oldest"),
    }


def test_key_stored_twice_by_one_submission_is_found_once(shop: Shop) -> None:
    shop.store().add("s", [table([1, 1, 2])])
    assert set(shop.answers([1, 2])) == {1, 2}


def test_failures_are_not_stored(shop: Shop) -> None:
    assert shop.store().add("s", [table(range(4), failed=[1, 3])]) == 2
    assert set(shop.answers(range(4))) == {0, 2}
    assert shop.store().add("t", []) == 0
    assert shop.store().add("u", [table([5], failed=[5])]) == 0
    assert shop.answers([5]) == {}
    assert shop.store().holds("t")


def test_rows_cross_files_row_groups_and_segments(local: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "ROWS_PER_FILE", 70)
    monkeypatch.setattr(data, "ROWS_PER_GROUP", 20)
    monkeypatch.setattr(segment, "ROWS_PER_GROUP", 30)
    monkeypatch.setattr("airflow_provider_raybatch.job.reuse.store.segment.ROWS_PER_SEGMENT", 100)
    local.store().add("s", [table(range(333)), table(range(333, 340)), table(range(340, 500))])
    assert len(local.folder.list("v1/data/s")) == 500 // 70 + 1 + 1
    assert len(local.folder.list("v1/index")) == 5
    assert local.answers(range(3, 600, 7)) == {name: (f"to {name}", "s") for name in range(3, 500, 7)}


def test_large_responses_make_small_files_and_groups(local: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BYTES_PER_FILE", 50_000)
    monkeypatch.setattr(data, "_BYTES_PER_GROUP", 10_000)
    local.store().add("s", [table(range(50), "x" * 1000)])
    assert len(local.folder.list("v1/data/s")) > 3
    tables = list(local.store().read(local.store().lookup(sorted_keys(range(50)))))
    assert sum(one.num_rows for one in tables) == 50
    assert all(one.nbytes < 20_000 for one in tables)


def test_responses_stored_before_a_field_was_added(local: Shop) -> None:
    task = Generate(spec())
    kind = pa.struct([*list(task.stored_type)[:2], ("old", "int8")])
    old = pa.array([{"response": "r", "finish_reason": "stop", "old": 1}], kind)
    local.store().add("s", [table([1]).set_column(1, "output", old)])
    found = pa.concat_tables(local.store().read(local.store().lookup(sorted_keys([1]))))
    adapted = task.adapted(found["output"].combine_chunks(), task.stored_type)
    assert adapted.type == task.stored_type
    assert adapted.to_pylist() == [
        {
            "response": "r",
            "finish_reason": "stop",
            "input_tokens": None,
            "cached_tokens": None,
            "output_tokens": None,
            "completions": [{"text": "r", "finish_reason": "stop", "output_tokens": None}],
        }
    ]


def test_rows_of_another_shape_are_refused(local: Shop) -> None:
    with pytest.raises(ValueError, match="add: columns"):
        local.store().add("s", [table([1]).drop_columns(["key"])])
    with pytest.raises(ValueError, match="add: columns"):
        local.store().add("s", [table([1]).set_column(0, "key", pa.array([b"x"]))])


def test_keys_must_be_sorted_and_each_once(local: Shop) -> None:
    keys = sorted_keys(range(3))
    for wrong in (keys[::-1], keys[[0, 0, 1]]):
        with pytest.raises(ValueError, match="sorted"):
            local.store().lookup(wrong)


def test_a_reader_may_want_younger_ones_than_there_are(shop: Shop) -> None:
    shop.store().add("s", [table([1])])
    shop.now += 10 * DAY
    assert shop.answers([1], max_age=9 * DAY) == {}
    assert set(shop.answers([1], max_age=11 * DAY)) == {1}
    assert set(shop.answers([1])) == {1}


def test_what_was_stored_for_some_time_expires_for_all(shop: Shop) -> None:
    shop.store(max_age=2 * DAY).add("s", [table([1])])
    shop.now += 2 * DAY - 1
    assert set(shop.answers([1])) == {1}
    shop.now += 1
    assert shop.answers([1]) == {}


def test_an_older_answer_that_lives_longer_counts_again(shop: Shop) -> None:
    shop.store().add("long", [table([1], "old")])
    shop.now += DAY
    shop.store(max_age=DAY).add("short", [table([1], "new")])
    assert shop.answers([1]) == {1: ("new 1", "short")}
    shop.now += 2 * DAY
    assert shop.answers([1]) == {1: ("old 1", "long")}
