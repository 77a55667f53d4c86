# SPDX-License-Identifier: Apache-2.0
"""Durations: a number of seconds, its text, or a ``timedelta``."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

from airflow_provider_raybatch.contract.base import shown


def in_words(seconds: float) -> str:
    """A duration for people: ``5 s``, ``3 min 5 s``, ``2 h 10 min``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def seconds_of(value: Any) -> float:
    """A duration in seconds, of a ``timedelta``, a finite number or the text of one."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            seconds = float(value)
            if math.isfinite(seconds):
                return seconds
    raise ValueError(f"{shown(value)} is not a duration; give seconds or a timedelta")


Seconds = Annotated[float, BeforeValidator(seconds_of)]
"""A field that holds a duration in seconds."""
