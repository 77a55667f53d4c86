# SPDX-License-Identifier: Apache-2.0
"""Whether an engine that is still starting makes progress: a large model may take an hour to load."""

from __future__ import annotations

import contextlib

_STEP = 16 * 1024 * 1024


def steps() -> int:
    """What this process and its children have read and written so far, in steps of 16 MiB.

    A download or a load from a slow disk makes some each minute, a process that hangs makes none. 0 if it
    can't be measured.
    """
    try:
        import psutil  # vLLM brings it; an engine without it has no model to load
    except ImportError:
        return 0
    moved = 0
    with contextlib.suppress(psutil.Error):
        here = psutil.Process()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error, AttributeError):  # it has ended, or this is not Linux
                counters = process.io_counters()
                # The first two count mapped files, the last two what is in the page cache already.
                moved += counters.read_bytes + counters.write_bytes
                moved += counters.read_chars + counters.write_chars
    return moved // _STEP
