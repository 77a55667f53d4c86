# SPDX-License-Identifier: Apache-2.0
"""How busy each GPU is while a job works on it, and whether its power holds it back."""

from __future__ import annotations

import json

from sampled import Sampled
from vllm.third_party import pynvml

BUSY = 50
"""Percent of NVML's utilization from which a GPU counts as working."""


class GpuRates(Sampled):
    """A context manager that samples all GPUs twenty times a second, and prints a JSON line each.

    Means over the time from the first busy sample to the last one: NVML's utilization (of its last sampling
    period, up to a second), watts, and the clock of the multiprocessors. `capped` is the part of the samples
    in which the power limit lowers the clock. GPUs that were never busy have no line.

    :param name: of the lines.
    """

    def __init__(self, name: str) -> None:
        super().__init__(interval=0.05)
        self._name = name
        self._gpus = gpus()
        self._seen: list[list[tuple[float, float, float, float]]] = [[] for _ in self._gpus]

    def sample(self) -> None:
        """Look at each GPU."""
        for gpu, seen in zip(self._gpus, self._seen, strict=True):
            reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            found = (
                float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
                pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                float(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
                float(bool(reasons & pynvml.nvmlClocksThrottleReasonSwPowerCap)),
            )
            if seen or found[0] >= BUSY:
                seen.append(found)

    def show(self) -> None:
        """Print the lines."""
        for gpu, seen in enumerate(self._seen):
            while seen and seen[-1][0] < BUSY:
                seen.pop()
            if seen:
                percent, watts, megahertz, capped = (
                    sum(values) / len(seen) for values in zip(*seen, strict=True)
                )
                line = {
                    "system": self._name,
                    "gpu": gpu,
                    "samples": len(seen),
                    "percent": round(percent, 1),
                    "watts": round(watts),
                    "megahertz": round(megahertz),
                    "capped": round(capped, 2),
                }
                print("GPU", json.dumps(line), flush=True)


def gpus() -> list[object]:
    """Return NVML's handles, none where it is not installed."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    return [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]
