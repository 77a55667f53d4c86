# SPDX-License-Identifier: Apache-2.0
"""Waiting with a bound, and with evidence when it was in vain."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(
    what: str,
    poll: Callable[[], Found | None],
    timeout: float,
    evidence: Callable[[], str] = str,
    pause: float = 0.4,
) -> Found:
    """The first truthy value of `look`; after `timeout` seconds an error that ends with `evidence`."""
    deadline = time.monotonic() + timeout
    while not (found := poll()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {timeout:.0f} s\n{evidence()}")
        time.sleep(pause)
    return found


def tail(path: Path, lines: int = 30, width: int = 300) -> str:
    """The end of a log file, under its name, long lines cut."""
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        last = ["(no such file)"]
    return "\n".join([f"--- {path.name}", *(line[:width] for line in last)])
