# SPDX-License-Identifier: Apache-2.0
"""What the actor of a warm engine measures once a second, and whether a starting engine makes progress."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from airflow_provider_raybatch.job.engine.gpu import GpuMeter
from airflow_provider_raybatch.job.warm_engines import measurements

_EVERY = 1.0


class Measurements:
    """Measured in a thread of its own: what hangs or fails here must not keep the engine alive.

    :ivar gpu: to be replaced where its mean begins anew.
    :ivar loaded: see :func:`~airflow_provider_raybatch.job.warm_engines.measurements.progress`.
    """

    def __init__(self) -> None:
        self.gpu, self.loaded = GpuMeter(), 0
        threading.Thread(target=self._measure, name="raybatch-measure", daemon=True).start()

    def _measure(self) -> None:
        while True:
            time.sleep(_EVERY)
            with contextlib.suppress(Exception):  # of NVML's
                self.gpu.sample()
            with contextlib.suppress(Exception):  # of the system's
                self.loaded = measurements.progress()


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
