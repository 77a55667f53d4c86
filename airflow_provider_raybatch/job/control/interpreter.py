# SPDX-License-Identifier: Apache-2.0
"""Finds the Python that runs Ray, for a driver that was started with another one.

A job's ``python`` is the first one on the PATH of ``ray start``. Where Ray was started by its full path, that
Python may lack Ray and all other packages, so this module needs the standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

_OPTION = "--python_worker_command="


def run_where_ray_is(module: str) -> None:
    """Replace this process by the Python of Ray's workers if this one has no Ray.

    :param module: what to run there, with the arguments of this process.
    """
    if importlib.util.find_spec("ray") is not None:
        return
    python = _of_ray_workers()
    if python is not None and python != sys.executable:
        os.execv(python, [python, "-m", module, *sys.argv[1:]])


def _of_ray_workers(proc: Path = Path("/proc")) -> str | None:
    """From the command line of the raylet, which is an ancestor of each driver; ``None`` without one."""
    process = os.getpid()
    try:
        while process > 1:
            arguments = (proc / str(process) / "cmdline").read_bytes().split(b"\0")
            for argument in arguments:
                text = os.fsdecode(argument)
                if text.startswith(_OPTION):
                    return shlex.split(text[len(_OPTION) :])[0]
            # The second field is a name in parentheses, and may hold anything; the parent is the fourth.
            status = (proc / str(process) / "stat").read_text()
            process = int(status.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass  # no Linux, or processes that this user may not see
    return None
