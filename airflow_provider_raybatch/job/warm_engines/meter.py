# SPDX-License-Identifier: Apache-2.0
"""How busy a warm engine's GPUs are, and how much it has loaded."""

from __future__ import annotations

import contextlib
import threading
import time

from airflow_provider_raybatch.job.engine import loading
from airflow_provider_raybatch.job.engine.gpu import GpuMeter

_EVERY = 1.0


class Meter:
    """Measures in a thread of its own: what hangs or fails here must not keep the engine alive.

    :ivar gpu: of the present holder.
    :ivar steps: see :mod:`~airflow_provider_raybatch.job.engine.loading`.
    """

    def __init__(self) -> None:
        self.gpu, self.steps = GpuMeter(), 0
        threading.Thread(target=self._run, name="raybatch-measure", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY)
            with contextlib.suppress(Exception):  # of NVML's
                self.gpu.sample()
            with contextlib.suppress(Exception):  # of the system's
                self.steps = loading.steps()
