# SPDX-License-Identifier: Apache-2.0
"""How long a batch may take: the `completion_window` of OpenAI's clients."""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_raybatch.contract.base import shown

OPENAI_WINDOW = "24h"
"""The only one that OpenAI offers."""
SHORTEST_WINDOW, LONGEST_WINDOW = 10 * 60, 14 * 24 * 3600
"""Seconds: an engine needs minutes to start, and uploads are deleted after weeks."""

_WINDOW = re.compile(r"([1-9]\d{0,4})([mhd])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 24 * 3600}


def window_seconds(given: Any, *, strict: bool = False) -> int:
    """The length of a window in seconds.

    :param given: as the client wrote it, such as ``24h``, ``90m`` or ``3d``.
    :param strict: accept what OpenAI accepts, and nothing else.
    :raises ValueError: it is not a window; one sentence says which are.
    """
    if strict and given != OPENAI_WINDOW:
        raise ValueError(f"completion_window: it must be '{OPENAI_WINDOW}', but it is {shown(given)}.")
    found = _WINDOW.fullmatch(given) if isinstance(given, str) else None
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not SHORTEST_WINDOW <= seconds <= LONGEST_WINDOW:
        raise ValueError(
            "completion_window: it must be from 10 minutes to 14 days, such as '24h', '90m' or '3d', but it "
            f"is {shown(given)}."
        )
    return seconds
