# SPDX-License-Identifier: Apache-2.0
"""Data that is added while old data is deleted stays, also if its writer's clock is late."""

from __future__ import annotations

import itertools

from airflow_provider_raybatch.storage.folder import Folder
from tests.support.responses import DAY, START, Faulty, Shop, table


def test_add_by_a_late_clock_before_each_listing_of_a_sweep(folder: Folder) -> None:
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
