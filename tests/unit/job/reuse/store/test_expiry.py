# SPDX-License-Identifier: Apache-2.0
"""Answers expire by the `max_age` of their writer, and by that of a reader."""

from __future__ import annotations

from tests.support.responses import DAY, Shop, table


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
