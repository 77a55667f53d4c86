# SPDX-License-Identifier: Apache-2.0
"""Waits with a time limit, and with evidence in the error."""

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
    """Return the first truthy value of `poll`; after `timeout` seconds, raise an error with `evidence`."""
    deadline = time.monotonic() + timeout
    while not (found := poll()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {timeout:.0f} s\n{evidence()}")
        time.sleep(pause)
    return found


def tail(path: Path, lines: int = 30, width: int = 300) -> str:
    """Return the end of a log file under its name, with long lines cut."""
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        last = ["(no such file)"]
    return "\n".join([f"--- {path.name}", *(line[:width] for line in last)])
