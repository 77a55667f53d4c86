# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.text import (
    all_storable,
    clean,
    count_of,
    cut_to,
    money_of,
    nearest,
    plain_reason,
    storable,
)
from tests.support.approved import AssertSentences
from tests.support.refused import HOSTILE, refused, unfit_for_logs


def test_a_foreign_exception_is_said_without_its_class(assert_sentences: AssertSentences) -> None:
    assert_sentences(plain_reason)


def test_the_nearest_name_ignores_case_and_is_another() -> None:
    assert nearest("LAMA", ["Llama", "Gemma"]) == "Llama"
    assert nearest("Llama", ["Llama"]) is None


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain, tägliche 日本\tand\nlines", "plain, tägliche 日本\tand\nlines"),
        ("a\0b", "a\ufffdb"),
        ("\udcff", "\ufffd"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]0;never ended\nnext", "0;never ended\nnext"),
        ("\x9b31mred", "red"),
        ("\x1b(Bx\x1b7\x1b", "x"),
        ("a\r\nb\rc", "a\nb\ufffdc"),
        ("::group::x", ": :group::x"),
        ("x ::endgroup::", "x : :endgroup::"),
        (":\x1b[m:group::", ": :group::"),
        ("::group::group::", ": :group: :group::"),
        ("std::groups::x", "std::groups::x"),
    ],
)
def test_clean_text(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert clean(cleaned) == cleaned


def test_what_is_cleaned_has_nothing_left() -> None:
    assert unfit_for_logs(clean(HOSTILE)) == []
    assert refused(storable(HOSTILE)) == []


def test_plain_data_is_made_storable_at_any_depth() -> None:
    data: Any = {"a\0": [1, None, {"b": ("\ud800", 1.5, True)}]}
    assert all_storable(data) == {"a\ufffd": [1, None, {"b": ["\ufffd", 1.5, True]}]}


def test_long_text_is_cut_with_a_mark() -> None:
    assert cut_to("x" * 30, 30) == "x" * 30
    assert cut_to("x" * 1031, 30) == "xxxxxx [1,001 more characters]"


def test_a_count_has_its_noun() -> None:
    assert [count_of(n, "row is", "rows are") for n in (0, 1, 2)] == ["0 rows are", "1 row is", "2 rows are"]
    assert [count_of(n, "token") for n in (1, 1200)] == ["1 token", "1,200 tokens"]


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (1234.5, "1,234.50"),
        (0.1, "0.10"),
        (0.05, "0.050"),
        (0.0042, "0.0042"),
        (1e-9, "0.0000000010"),
    ],
)
def test_an_amount_of_money_has_digits_that_count(amount: float, text: str) -> None:
    assert (money_of(amount, "EUR"), money_of(amount, None)) == (f"{text} EUR", text)
