# SPDX-License-Identifier: Apache-2.0
"""Which prompts share a prefix."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.execution import prefixes
from airflow_provider_raybatch.job.row import Request

A, B = "a" * prefixes.LONG, "b" * prefixes.LONG


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
    assert prefixes.are_shared(texts) is shared


def test_half_of_the_prompts_are_long() -> None:
    assert prefixes.are_long([A, B, "short"])
    assert not prefixes.are_long([A, "short", "short"])
    assert not prefixes.are_long([])


def test_a_chat_begins_with_its_first_message() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert prefixes.text_of(Request(messages=chat)) == "Be brief.\0Why?"
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert prefixes.text_of(Request(messages=[chat[0], image, chat[1]])) == "Be brief."
    assert prefixes.text_of(Request(prompt="Once")) == "Once"
