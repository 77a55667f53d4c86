# SPDX-License-Identifier: Apache-2.0
"""Prompts that are longer than the context, cut at the values of their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.job.request.row_text import shortened
from airflow_provider_raybatch.job.row import Request

TEMPLATE = RowTemplate("Begin {row.a} middle {row.b} end")


def request_of(a: str, b: str = "") -> Request:
    system = RowTemplate("Title: {row.b}").render({"b": b})
    content = TEMPLATE.render({"a": a, "b": b})
    return Request(messages=[{"role": "system", "content": system}, {"role": "user", "content": content}])


def contents(request: Request) -> list[str]:
    return [message["content"] for message in request.messages or ()]


def characters(request: Request) -> int:
    return sum(map(len, contents(request)))


def words(request: Request) -> int:
    return sum(len(text.split()) for text in contents(request))


@pytest.mark.parametrize("counts", [characters, words])
def test_the_longest_value_is_cut_and_nothing_else(counts: Callable[[Request], int]) -> None:
    whole = request_of("alpha beta " * 2000, "short")
    cut = shortened(whole, counts, counts(whole), 500)
    assert cut is not None
    assert 495 <= counts(cut) <= 500
    system, user = contents(cut)
    assert system == "Title: short"
    value = user.removeprefix("Begin ").removesuffix(" middle short end")
    assert ("alpha beta " * 2000).startswith(value)
    assert "Begin " + value + " middle short end" == user


def test_values_of_one_length_are_cut_alike() -> None:
    cut = shortened(request_of("a" * 5000, "b" * 5000), characters, 15000, 1000)
    assert cut is not None
    _, user = contents(cut)
    assert user.count("aa") == user.count("bb") > 100


def test_a_template_is_never_cut() -> None:
    assert shortened(request_of("a" * 100), characters, 140, 20) is None
    fixed = Request(messages=[{"role": "user", "content": "a " * 100}])
    assert shortened(fixed, words, 100, 20) is None
    assert shortened(Request(prompt="a " * 100), words, 100, 20) is None


@given(st.text(min_size=1, max_size=400), st.text(max_size=400), st.floats(0, 1))
def test_a_cut_prompt_fits(a: str, b: str, share: float) -> None:
    whole, template = request_of(a, b), characters(request_of("", ""))
    most = max(1, int(share * (characters(whole) - 1)))
    cut = shortened(whole, characters, characters(whole), most)
    if cut is None:
        assert template + 3 > most  # for one character of each value
    else:
        assert template < characters(cut) <= most


def test_few_tries_are_needed() -> None:
    """Each one tokenises a prompt of the context's length."""
    counted = []

    def tokens(request: Request) -> int:
        counted.append(request)
        return characters(request) // 4

    whole = request_of("a" * 1_000_000)
    assert shortened(whole, tokens, 250_000, 8000) is not None
    assert len(counted) <= 4
