# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an actor has, how busy they are, and when an engine that shares one may start.

vLLM finds the room for its KV cache by what is free on the GPU before and after a first step, and takes all
that changes between for its own. Two engines that start at the same time charge each other's weights to
themselves: their caches are too small, or none is left. vLLM has no lock for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

_LONGEST_WAIT = 600.0
"""Seconds after which an engine starts nevertheless: one that starts for longer has measured, or hangs."""
_POLL = 0.1
_SHARED_MEMORY = Path("/dev/shm")
"""Of this machine, also where jobs have a `TMPDIR` of their own, or one on NFS."""


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


@contextlib.contextmanager
def starting(spec: BatchInferenceSpec) -> Iterator[None]:
    """Start an engine here: alone on its GPU, if it shares it.

    The lock ends with this process. Where there can be none, as on a full disk, the engine starts without. It
    waits for another engine's start for at most half of the time without progress that the job allows.
    """
    if not spec.shares_gpu:
        yield
        return
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        file = os.open(_path(devices), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _say(f"GPU {devices}: no lock can be made ({error}), so engines may start at the same time")
        yield
        return
    try:
        _wait(file, devices, min(_LONGEST_WAIT, spec.no_progress_timeout / 2))
        yield
    finally:
        # A process that was forked meanwhile has the descriptor, too.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _path(devices: str) -> Path:
    """The file of these GPUs. It stays: one that is removed while a process waits for it locks nothing."""
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    digest = hashlib.sha256(devices.encode()).hexdigest()[:16]
    return folder / f"raybatch-gpu-{os.getuid()}-{digest}"


def _wait(file: int, devices: str, longest: float) -> None:
    ends, has_said = time.monotonic() + longest, False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not has_said:
            _say(
                f"GPU {devices}: another engine starts on it and measures its memory; this one waits for it, "
                f"at most {longest:g} s"
            )
            has_said = True
        if time.monotonic() >= ends:
            _say(f"GPU {devices}: the other engine still starts after {longest:g} s; this one starts now")
            return
        time.sleep(_POLL)


def _say(text: str) -> None:
    """Into the log of the process, where vLLM's own lines are."""
    print(f"num_gpus: {text}.", file=sys.stderr, flush=True)
