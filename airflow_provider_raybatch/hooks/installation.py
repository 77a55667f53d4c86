# SPDX-License-Identifier: Apache-2.0
"""The id of this Airflow installation, which keeps its jobs apart from those of other Airflows."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import NoReturn, TypeVar

from airflow.sdk import Variable

from airflow_provider_raybatch.exceptions import RayBatchUnavailableException

VARIABLE = "raybatch_installation_id"

_DESCRIPTION = (
    "Keeps the Ray jobs of this Airflow apart from those of other Airflows on the same cluster. Made by "
    "airflow-provider-raybatch; a copy of this database needs another value, or a namespace in its Ray "
    "connections."
)
_PAUSE = 1.0
_LONGEST_STAGGER = 3.0
"""Seconds by which first tasks wait at most before they write, each for a time of its own."""
_READS = 60
_EQUAL_READS = 3
_EMPTY_READS = 10

Value = TypeVar("Value")


def installation_id() -> str:
    """The id in the Airflow Variable ``raybatch_installation_id``, made by the first task that asks.

    A Variable can be written and read, but not created on condition. So tasks that find none wait for random
    times before they write, that most of them find the first one's value. Where two still write, the last one
    wins, and each reads until it has seen the same value for some seconds. A write that arrives even later
    (Airflow repeats one whose answer is late) does little harm: a run keeps the namespace in its record.

    :raises RayBatchException: the Variable can't be read or written; a retry asks again.
    """
    found = _read()
    if found is not None:
        return found
    # Airflow also says "not found" while its API server or a secrets backend gives no answer. The list of
    # keys comes from the database alone, and an error stays an error.
    if VARIABLE in _asked("listed", lambda: list(Variable.keys(prefix=VARIABLE))):
        # Another task may have made it since it was looked for.
        return _settled("read", "Airflow lists it and gives no value")
    time.sleep(random.uniform(0, _LONGEST_STAGGER))
    if _read() is not None:
        return _settled("read", "it was there a moment ago")
    made = str(uuid.uuid4())
    _asked("stored", lambda: Variable.set(VARIABLE, made, description=_DESCRIPTION))
    return _settled("stored", "what was written can't be read")


def _settled(failed: str, why: str) -> str:
    """The value, once it has been the same for some reads; else `failed` and `why` tell what went wrong."""
    last, equal = None, 0
    for _ in range(_READS):
        found = _read()
        equal = equal + 1 if found == last else 1
        last = found
        if last is not None and equal >= _EQUAL_READS:
            return last
        if last is None and equal >= _EMPTY_READS:
            break
        time.sleep(_PAUSE)
    if last is None:
        _fail(failed, why)
    return last


def _read() -> str | None:
    found: object = _asked("read", lambda: Variable.get(VARIABLE, default=None))
    return str(found).strip() or None if found is not None else None


def _asked(what: str, call: Callable[[], Value]) -> Value:
    try:
        return call()
    except Exception as error:
        _fail(what, f"{type(error).__name__}: {error}", error)


def _fail(what: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise RayBatchUnavailableException(
        f"Variable {VARIABLE!r}: it can't be {what} ({why}), so nothing was submitted; a retry asks again, "
        "and a namespace in the Ray connection's extra replaces it.",
    ) from cause
