# SPDX-License-Identifier: Apache-2.0
"""Durations: a number of seconds, its text, or a ``timedelta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

from airflow_provider_raybatch.contract.base import shown

_LONGEST = 1e300
"""Seconds; beyond it are infinity, and integers that no float can hold."""


def seconds_of(value: Any) -> float:
    """A duration in seconds.

    :raises ValueError: it is neither a ``timedelta`` nor a finite number, nor the text of one.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    found = value
    if isinstance(value, str):
        try:
            found = float(value)
        except ValueError:
            found = None
    if isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) <= _LONGEST:
        return float(found)
    raise ValueError(f"{shown(value)} is not a duration; give seconds or a timedelta")


Seconds = Annotated[float, BeforeValidator(seconds_of)]
"""A field that holds a duration in seconds."""
