# SPDX-License-Identifier: Apache-2.0
"""Which prompts share a prefix."""

from __future__ import annotations

import random

import pytest

from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order import grouping

A, B = "a" * grouping.LONG, "b" * grouping.LONG


@pytest.mark.parametrize(
    ("texts", "shared"),
    [
        ([], False),
        ([A], False),
        ([A + "1", A + "2", A + "3"], False),  # all share it, so any order serves them from the cache
        ([A + "1", B + "1", A + "2"], True),
        ([A + "1", B + "1"], False),
        (["x" * 5000 + A + "1", "x" * 5000 + B, "x" * 5000 + A + "2"], True),
        ([A[1:] + "1", B + "1", A[1:] + "2"], False),  # too short to matter
    ],
)
def test_some_begin_alike_for_longer_than_all_do(texts: list[str], shared: bool) -> None:
    assert grouping.are_shared(texts) is shared


def test_half_of_the_prompts_are_long() -> None:
    assert grouping.are_long([A, B, "short"])
    assert not grouping.are_long([A, "short", "short"])
    assert not grouping.are_long([])


def test_a_chat_begins_with_its_first_message() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert grouping.text_of(Request(messages=chat)) == "Be brief.\0Why?"

    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert grouping.text_of(Request(messages=[chat[0], image, chat[1]])) == "Be brief."
    assert grouping.text_of(Request(prompt="Once")) == "Once"


def documents(number: int, rows: int, size: int = 2 * grouping.LONG) -> list[str]:
    """Return the prompts of so many rows on each of so many documents, document by document."""
    return [
        f"{document:05d} {'x' * size} question {row}" for document in range(number) for row in range(rows)
    ]


def shuffled(texts: list[str]) -> list[str]:
    return random.Random(7).sample(texts, len(texts))


@pytest.mark.parametrize(
    ("texts", "rows", "pays"),
    [
        (shuffled(documents(250, 4)), 1000, True),
        (shuffled(documents(1000, 4))[:1000], 4000, True),  # 1,000 rows are looked at
        (shuffled(documents(20_000, 4))[:1000], 80_000, True),  # of four rows in the sample, some two
        (documents(250, 4), 1000, False),  # together on disk
        (shuffled(documents(8, 125)), 1000, False),  # any order serves them from the cache
        (shuffled(documents(1000, 1)), 1000, False),
        (shuffled(documents(250, 4, size=100)), 1000, False),
        (shuffled([*documents(960, 1), *documents(10, 4)]), 1000, False),  # too few rows share one
        ([], 0, False),
    ],
)
def test_rows_that_share_a_prefix_lie_apart(texts: list[str], rows: int, pays: bool) -> None:
    size = grouping.scattered_prefix(texts, rows)
    assert size >= grouping.LONG if pays else size == 0


def test_what_all_prompts_share_is_no_group() -> None:
    """Groups are told apart by what comes after it."""
    system = "y" * 5000
    texts = [system + text for text in shuffled(documents(250, 4))]
    assert grouping.scattered_prefix(texts, 1000) > len(system) + grouping.LONG
    assert not grouping.scattered_prefix([system + text for text in shuffled(documents(1000, 1))], 1000)


def test_adapters_share_no_prefix() -> None:
    """The engine caches the prefixes of each apart."""
    asked = [Request(prompt=A, adapter=name) for name in ("a", "b", None)]
    assert len({grouping.text_of(one)[:3] for one in asked}) == 3
    texts = [grouping.text_of(Request(prompt=A + "x", adapter=name)) for name in "abab"]
    assert grouping.are_shared(texts)
    assert grouping.are_shared([A + "x"] * 4) is False
