# SPDX-License-Identifier: Apache-2.0
"""The numbers of the dataset before this one, for looking at both side by side; and those in an XCom."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel

_COUNTS = (
    "rows",
    "errors",
    "tokens_paid",
    "resumed",
    "reused",
    "duplicates",
    "input_tokens",
    "output_tokens",
)
_AMOUNTS = ("seconds", "output_tokens_per_second", "gpu_seconds", "cost")
_MOST = 1e15
_CURRENCY = re.compile("[A-Z]{3}")


class LastRun(ContractModel):
    """What a task's last dataset was like: numbers alone; ``None`` where it is not known.

    :param rows: good rows, and `errors` failed ones.
    :param input_tokens: of the delivered rows; so are `output_tokens`.
    :param tokens_paid: as in the manifest; so are `gpu_seconds`, `cost` and `currency`.
    :param columns: name and Arrow type; ``None`` if only the numbers are known.
    :param created_at: ISO 8601, in UTC.
    """

    rows: int
    errors: int
    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_paid: int | None = None
    output_tokens_per_second: float | None = None
    gpu_seconds: float | None = None
    cost: float | None = None
    currency: str | None = None
    resumed: int | None = None
    reused: int | None = None
    duplicates: int | None = None
    finish_reasons: dict[str, int] = Field(default_factory=dict)
    errors_by_step: dict[str, int] = Field(default_factory=dict)
    columns: dict[str, str] | None = None
    created_at: str | None = None


def numbers_in(result: Any) -> dict[str, Any]:
    """The numbers in a task's return value, by fields of :class:`LastRun`; what is not a number is left out.

    Whoever may edit XComs may put anything there, so no text of it counts but a currency.
    """
    given = dict(result) if isinstance(result, Mapping) else {}
    tokens = given.get("tokens")
    if isinstance(tokens, Mapping):
        given |= {"input_tokens": tokens.get("input"), "output_tokens": tokens.get("output")}
    found = {name: given[name] for name in _COUNTS if is_count(given.get(name))}
    found |= {name: given[name] for name in _AMOUNTS if is_amount(given.get(name))}
    currency = given.get("currency")
    if isinstance(currency, str) and _CURRENCY.fullmatch(currency):
        found["currency"] = currency
    return found


def is_count(value: object) -> TypeGuard[int]:
    """Whether `value` is a number of things, which a database holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_amount(value: object) -> TypeGuard[float]:
    """Whether `value` is an amount of something: finite, not negative, and of a bearable size."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST
