# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an actor has, and how busy they are, as NVIDIA's driver reports it."""

from __future__ import annotations

import contextlib
import os
from typing import Any


def assigned(context: Any) -> list[str]:
    """Ray's ids of the GPUs that an actor has on its node, in order.

    :param context: the actor's ``ray.get_runtime_context()``.
    """
    found = map(str, context.get_accelerator_ids().get("GPU", []))
    return sorted(found, key=lambda one: (len(one), one))  # 9 before 10


def memory_of_own_gpu() -> int | None:
    """Bytes of the first GPU that this process may see; ``None`` without NVML. It makes no context there."""
    with contextlib.suppress(Exception):  # NVML makes its exceptions at run time
        return GpuMeter().memory()
    return None


class GpuMeter:
    """Running mean over the GPUs that this process may see.

    Of a GPU that engines share, it is that of all of them: in a container, NVML does not say which process
    keeps it busy. It is only shown to users, so all errors of NVML are ignored: a MIG slice has no
    utilisation.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._sum, self._samples = 0.0, 0
        with contextlib.suppress(Exception):  # NVML makes its exceptions at run time
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            listed = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = map(str, range(pynvml.nvmlDeviceGetCount())) if listed is None else listed.split(",")
            self._handles = [self._handle(name) for name in names if name.strip()]

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def memory(self) -> int | None:
        """Bytes of the first GPU. :raises Exception: NVML's own."""
        handles = self._handles
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handles[0]).total) if handles else None

    def sample(self) -> None:
        """Take one reading of each GPU."""
        if not self._handles:
            return
        try:
            readings = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
        except Exception:  # the thread that calls this also sends reports
            self._handles = []
            return
        self._sum += sum(readings) / len(readings)
        self._samples += 1

    @property
    def mean(self) -> float | None:
        """Mean utilisation so far, 0 to 100; ``None`` if NVML does not report it."""
        return round(self._sum / self._samples, 1) if self._samples else None
