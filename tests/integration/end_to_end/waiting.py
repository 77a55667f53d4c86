# SPDX-License-Identifier: Apache-2.0
"""Waits with a time limit, and with evidence in the error."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
Item = TypeVar("Item")


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


def all_at_once(
    do: Callable[[Item], Found], items: Sequence[Item], parallel: int | None = None
) -> list[Found]:
    """Return what `do` returns for each item, several at once, by default all.

    After an interruption the threads go on, and end when what they wait for ends.
    """
    pool = ThreadPoolExecutor(parallel or len(items))
    try:
        return list(pool.map(do, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def tail(path: Path, lines: int = 30, width: int = 300) -> str:
    """Return the end of a log file under its name, with long lines cut."""
    try:
        last = path.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        last = ["(no such file)"]
    return "\n".join([f"--- {path.name}", *(line[:width] for line in last)])
