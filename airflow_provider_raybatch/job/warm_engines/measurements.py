# SPDX-License-Identifier: Apache-2.0
"""What the actor of a warm engine measures for its holder, once a second."""

from __future__ import annotations

import contextlib
import threading
import time

from airflow_provider_raybatch.job.engine import loading
from airflow_provider_raybatch.job.engine.gpu import GpuMeter

_EVERY = 1.0


class Measurements:
    """Measured in a thread of its own: what hangs or fails here must not keep the engine alive.

    :ivar gpu: to be replaced where its mean begins anew.
    :ivar loaded: see :func:`~airflow_provider_raybatch.job.engine.loading.progress`.
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
                self.loaded = loading.progress()
