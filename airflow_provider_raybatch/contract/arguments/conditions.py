# SPDX-License-Identifier: Apache-2.0
"""Conditions on a row: which ones can be written, and whether a value fulfils one."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Number
from typing import Any

from airflow_provider_raybatch.contract.base import shown

NULL_OPERATORS = ("is null", "is not null")
LIST_OPERATORS = ("in", "not in")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", *LIST_OPERATORS, *NULL_OPERATORS)
"""As in the filters of pyarrow and pandas."""


def check_condition(condition: Any) -> None:
    """Refuse what is not a condition: ``(column, operator)`` or ``(column, operator, value)``.

    :raises ValueError: one sentence, with the condition.
    """
    parts = condition if isinstance(condition, (list, tuple)) else ()
    operator = str(parts[1]) if len(parts) in (2, 3) else ""
    fits = (
        operator in OPERATORS
        and isinstance(parts[0], str)
        and parts[0] != ""
        and (operator in NULL_OPERATORS) is (len(parts) == 2)
        and (operator in LIST_OPERATORS) is isinstance(parts[-1], (list, tuple))
    )
    if not fits:
        raise ValueError(
            f"a condition is (column, operator, value), or (column, 'is null'), with one of "
            f"{', '.join(OPERATORS)}, and a list of values for 'in', but it is {shown(_plain(condition))}"
        )
    if operator not in NULL_OPERATORS:
        for one in parts[2] if operator in LIST_OPERATORS else [parts[2]]:
            _check_value(one, operator)


def holds(value: Any, operator: str, other: Any = None) -> bool:
    """Whether `value` fulfils ``operator other``, a checked condition.

    A null fulfils ``is null`` alone. A value of another kind than `other` fulfils nothing: text, numbers and
    booleans are never equal, nor unequal. A decimal equals the number that is written alike, such as 0.1.
    """
    if operator in NULL_OPERATORS:
        return (value is None) is (operator == "is null")
    if value is None:
        return False
    if operator in LIST_OPERATORS:
        alike = [_as_decimal(one, value) for one in other if _kind(one) == _kind(value)]
        if other and not alike:
            return False
        return (value in alike) is (operator == "in")
    if _kind(value) != _kind(other):
        return False
    other = _as_decimal(other, value)
    if operator in ("==", "!="):
        return bool(value == other) is (operator == "==")
    if operator == "<":
        return bool(value < other)
    if operator == "<=":
        return bool(value <= other)
    return bool(value > other if operator == ">" else value >= other)


def _check_value(value: Any, operator: str) -> None:
    if value is None:
        raise ValueError(f"{operator!r} is never true of None; use 'is null' or 'is not null'")
    if not isinstance(value, (str, bool, int, float)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(
            f"{shown(value)} is not text, a finite number, true or false; compare with one of these"
        )


def _as_decimal(other: Any, value: Any) -> Any:
    """The number that a decimal is compared with: a float of the same digits is another number."""
    is_float = isinstance(other, float) and isinstance(value, Decimal)
    return Decimal(repr(other)) if is_float else other


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, Number) else type(value).__name__


def _plain(value: Any) -> Any:
    """As it is written in a DAG: a condition from JSON is a list."""
    return tuple(value) if isinstance(value, list) else value
