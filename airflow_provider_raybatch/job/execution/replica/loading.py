# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that is still starting makes headway: a large model may take an hour to load."""

from __future__ import annotations

import contextlib

_STEP = 16 * 1024 * 1024


def steps() -> int:
    """What this process and those below it have read and written by now, in steps of 16 MiB.

    A download or a load from a slow disk makes some each minute, a process that hangs makes none. 0 where
    that can't be told.
    """
    try:
        import psutil  # vLLM brings it; an engine without it has no model to load
    except ImportError:
        return 0
    moved = 0
    with contextlib.suppress(psutil.Error):
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error, AttributeError):  # ended meanwhile, or no Linux
                counters = process.io_counters()
                # Mapped files are in the former alone, what lies in memory already in the latter.
                moved += counters.read_bytes + counters.write_bytes
                moved += counters.read_chars + counters.write_chars
    return moved // _STEP
