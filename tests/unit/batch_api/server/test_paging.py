# SPDX-License-Identifier: Apache-2.0
"""Pages of lists."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError, Page, page_of

IDS = ["e", "d", "c", "b", "a"]


def page(limit: Any = None, after: Any = None, order: Any = None, gone_at: int | None = None) -> Page:
    return page_of(IDS, default=20, most=100, limit=limit, after=after, order=order, gone_at=gone_at)


def test_the_default_page_is_the_newest_first() -> None:
    assert page() == (IDS, False)
    assert page(order="desc") == (IDS, False)
    assert page(order="asc") == (["a", "b", "c", "d", "e"], False)


def test_pages_one_after_the_other_give_each_entry_once() -> None:
    for order, expected in ((None, IDS), ("asc", IDS[::-1])):
        seen: list[str] = []
        more = True
        while more:
            found, more = page("2", seen[-1] if seen else None, order)
            seen += found
        assert seen == expected


@pytest.mark.parametrize(("limit", "more"), [("4", True), ("5", False), ("6", False)])
def test_has_more_at_the_end_of_the_list(limit: str, more: bool) -> None:
    assert page(limit).has_more is more


def test_nothing_follows_the_last_entry() -> None:
    assert page(after="a") == ([], False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"), ("limit", "101"), ("limit", "-1"), ("limit", "1.5"), ("limit", ""), ("limit", "²"),
        ("limit", "9" * 5000), ("order", "up"), ("order", ""), ("after", "x"), ("after", ""),
        ("after", "../e"), ("after", "x" * 10_000),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_named(name: str, value: str) -> None:
    with pytest.raises(OpenAiError) as refusal:
        page(**{name: value})
    assert (refusal.value.status, refusal.value.param) == (400, name)
    assert str(refusal.value).startswith(f"{name}: ")
    assert len(str(refusal.value)) < 300


def test_a_page_after_an_entry_that_was_deleted() -> None:
    """It stood between c and b."""
    assert page("2", "gone", gone_at=3) == (["b", "a"], False)
    assert page("2", "gone", "asc", gone_at=3) == (["c", "d"], True)
