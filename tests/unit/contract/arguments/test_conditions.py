# SPDX-License-Identifier: Apache-2.0
"""Which values fulfil a condition, and which conditions are refused."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.steps import OPERATORS, check_condition, holds
from tests.support.approved import AssertSentences

VALUES = [None, 4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]


@pytest.mark.parametrize(
    ("operator", "other", "fulfilled"),
    [
        ("is null", None, [None]),
        ("is not null", None, [4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]),
        ("==", 4, [4]),
        ("==", 4.5, [4.5, Decimal("4.5")]),
        ("==", "4", ["4"]),
        ("==", True, [True]),
        ("!=", 4, [4.5, Decimal("4.5"), math.nan]),
        ("!=", "4", ["five"]),
        ("!=", False, [True]),
        ("<", 4.5, [4]),
        ("<=", 4.5, [4, 4.5, Decimal("4.5")]),
        (">", 4, [4.5, Decimal("4.5")]),
        (">=", 4, [4, 4.5, Decimal("4.5")]),
        ("<", "5", ["4"]),
        (">=", False, [True]),
        ("in", [4, "five"], [4, "five"]),
        ("in", [], []),
        ("not in", [4], [4.5, Decimal("4.5"), math.nan]),
        ("not in", [4, "4"], [4.5, Decimal("4.5"), "five", math.nan]),
        ("not in", [True], []),
        ("not in", [], [4, 4.5, Decimal("4.5"), True, "4", "five", [4], math.nan]),
    ],
)
def test_nulls_and_other_kinds_fulfil_nothing(operator: str, other: Any, fulfilled: list[Any]) -> None:
    found = [value for value in VALUES if holds(value, operator, other)]
    assert [repr(value) for value in found] == [repr(value) for value in fulfilled]


@pytest.mark.parametrize("digits", ["0.1", "19.99", "-2.675", "1E+22"])
def test_a_decimal_equals_the_number_that_is_written_alike(digits: str) -> None:
    value, number = Decimal(digits), float(digits)
    fulfilled = [
        operator for operator in ("==", "!=", "<", "<=", ">", ">=") if holds(value, operator, number)
    ]
    assert fulfilled == ["==", "<=", ">="]
    assert holds(value, "in", [number, 7.5])
    assert not holds(value, "not in", [number, 7.5])


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_can_be_written_and_judges(operator: str) -> None:
    other: list[Any] = [] if "null" in operator else [["a"]] if "in" in operator.split() else ["a"]
    check_condition(("column", operator, *other))
    assert {holds(value, operator, *other) for value in (None, "a", "b", " ")} == {True, False}


def test_other_conditions_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(check_condition, ValueError)
