# SPDX-License-Identifier: Apache-2.0
"""What the task returned in the DAG run before, and the numbers of it that a job's report compares with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskInstanceState

from airflow_provider_raybatch.contract.last_run import LastRun

if TYPE_CHECKING:
    from airflow.sdk import Context

_COUNTS = ("rows", "errors", "tokens_paid", "resumed", "reused", "duplicates")
_AMOUNTS = ("seconds", "output_tokens_per_second", "gpu_seconds", "cost")
_MOST = 1e15
_CURRENCY = re.compile("[A-Z]{3}")


def result_before(context: Context) -> Mapping[str, Any] | None:
    """What the task returned in the DAG run before, ``None`` if that can't be known.

    Where each run has its own destination, the job can't tell.
    """
    ti = context["ti"]
    try:
        # Airflow writes an error into the log for an XCom that does not exist.
        index = -1 if ti.map_index is None else ti.map_index
        before = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=index)
        if before is None:
            return None
        found = ti.xcom_pull(run_id=before.run_id, map_indexes=index)
    except Exception:
        return None  # it is one figure in one line
    known = isinstance(found, Mapping) and all(isinstance(found.get(key), int) for key in ("rows", "errors"))
    return found if known else None


def last_run_before(context: Context) -> LastRun | None:
    """The numbers of :func:`result_before`."""
    found = result_before(context)
    return None if found is None else numbers_of(found)


def numbers_of(result: Mapping[str, Any]) -> LastRun | None:
    """The numbers of a task's return value; what does not belong there, or is not a number, is left out.

    Whoever may edit XComs may put anything there, so no text of it counts but a currency.
    """
    tokens = result.get("tokens")
    tokens = tokens if isinstance(tokens, Mapping) else {}
    given = {**result, "input_tokens": tokens.get("input"), "output_tokens": tokens.get("output")}
    found: dict[str, Any] = {
        name: given[name]
        for name in (*_COUNTS, "input_tokens", "output_tokens")
        if _is_count(given.get(name))
    }
    found |= {name: given[name] for name in _AMOUNTS if _is_amount(given.get(name))}
    currency = given.get("currency")
    if isinstance(currency, str) and _CURRENCY.fullmatch(currency):
        found["currency"] = currency
    return LastRun(**found) if {"rows", "errors"} <= found.keys() else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
