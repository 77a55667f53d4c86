# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that is still starting makes progress: a large model may take an hour to load."""

from __future__ import annotations

import contextlib
from typing import Any

_STEP = 16 * 1024 * 1024

_measured = 0
"""Bytes that the measuring itself has read: to find children, it reads of each process of the machine."""


def progress() -> int:
    """Bytes that this process and its children have read and written so far, in steps of 16 MiB.

    A download or a load from a slow disk makes some steps each minute, a process that hangs makes none. 0 if
    they can't be measured.
    """
    try:
        import psutil  # vLLM brings it
    except ImportError:
        return 0
    global _measured
    moved = 0
    with contextlib.suppress(psutil.Error):
        here = psutil.Process()
        before = _moved(here)
        moved = before + sum(map(_moved, here.children(recursive=True)))
        moved -= _measured
        _measured += _moved(here) - before
    return moved // _STEP


def _moved(process: Any) -> int:
    try:
        counters = process.io_counters()
    except Exception:  # it has ended, is another user's, or this is not Linux
        return 0
    # The first two count mapped files, the last two what is in the page cache already.
    return int(counters.read_bytes + counters.write_bytes + counters.read_chars + counters.write_chars)
