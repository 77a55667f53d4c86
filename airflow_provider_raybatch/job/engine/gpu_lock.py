# SPDX-License-Identifier: Apache-2.0
"""Lets the engines that share a GPU start one after the other.

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

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

LONGEST_WAIT = 600.0
"""Seconds after which an engine starts nevertheless: one that starts for longer has measured, or hangs."""
_POLL = 0.1
_SHARED_MEMORY = Path("/dev/shm")
"""Of this machine, also where jobs have a `TMPDIR` of their own, or one on NFS."""


@contextlib.contextmanager
def starting(spec: BatchInferenceSpec, longest: float = LONGEST_WAIT) -> Iterator[None]:
    """Start an engine here: alone on its GPU, if it shares it.

    The lock ends with this process. Where there can be none, as on a full disk, the engine starts without.

    :param longest: seconds to wait for another engine's start; at most half of the time without progress that
        the job allows.
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
        _wait(file, devices, min(longest, spec.no_progress_timeout / 2))
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
