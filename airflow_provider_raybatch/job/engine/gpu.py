# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an actor has, and how busy they are, as NVIDIA's driver reports it."""

from __future__ import annotations

from typing import Any


def assigned(context: Any) -> list[str]:
    """Ids of the GPUs that an actor has on its node, as Ray gives them.

    :param context: the actor's ``ray.get_runtime_context()``.
    """
    found = map(str, context.get_accelerator_ids().get("GPU", []))
    return sorted(found, key=lambda one: (len(one), one))  # 9 before 10; Ray gives them in any order


class GpuMeter:
    """Running mean over the GPUs that this process may see; ``None`` if NVML does not report it.

    It is only shown to users, so an error of NVML (a MIG slice has no utilisation) is ignored.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._nvml: Any = None
        self._sum = 0.0
        self._samples = 0
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [self._handle(name) for name in _visible(pynvml.nvmlDeviceGetCount())]
        except Exception:  # NVML makes its exceptions at run time, different ones in each version
            self._handles = []

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def sample(self) -> None:
        """Take one reading of each GPU."""
        if not self._handles:
            return
        try:
            readings = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
        except Exception:  # as above; this thread also sends reports and receives orders to drain
            self._handles = []
            return
        self._sum += sum(readings) / len(readings)
        self._samples += 1

    @property
    def mean(self) -> float | None:
        """Mean utilisation so far, 0 to 100."""
        return round(self._sum / self._samples, 1) if self._samples else None


def _visible(count: int) -> list[str]:
    import os

    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(number) for number in range(count)]
    return [name for name in listed.split(",") if name.strip()]
