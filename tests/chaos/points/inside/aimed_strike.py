# SPDX-License-Identifier: Apache-2.0
"""Kills or freezes its own process at an exact point, once per run. Standard library only.

Airflow's processes and those of Ray's jobs both find this module: its folder is Airflow's plugins folder, and
on the ``PYTHONPATH`` of the jobs.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DRIVER = "driver.pid"
"""Where a job's driver leaves its process id, in the folder of the strikes."""
_MOST_ANCESTORS = 3


def strike(aims: Mapping[str, Any], point: str, process: int | None = None) -> None:
    """Send this process the signal of `point`, if there is one; only the first process gets it.

    Supervisors would end a frozen process, so they are frozen with it.

    :param aims: `struck`, a folder that gets a file for each strike; `signals`, ``KILL`` or ``STOP`` by
        point; `keepers`, parts of the command lines of supervisors.
    :param process: another victim than this process.
    """
    name = aims.get("signals", {}).get(point)
    if name is None:
        return
    victim = os.getpid() if process is None else process
    keepers = _keepers(victim, aims["keepers"]) if name == "STOP" else []
    record = {"point": point, "signal": name, "pids": [victim, *keepers], "at": time.time()}
    scratch = Path(aims["struck"], f".{point}-{os.getpid()}")
    scratch.write_text(json.dumps(record))
    try:
        os.link(scratch, Path(aims["struck"], f"{point}.json"))
    except FileExistsError:
        return
    finally:
        scratch.unlink()
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    os.kill(victim, getattr(signal, f"SIG{name}"))


def _keepers(process: int, known: Sequence[str]) -> list[int]:
    """Return the nearest ancestors of a process, up to the one whose command line has one of these words."""
    found: list[int] = []
    for _ in range(_MOST_ANCESTORS):
        status = Path(f"/proc/{process}/stat").read_text()
        process = int(status.rpartition(")")[2].split()[1])
        command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        found.append(process)
        if any(word in command for word in known):
            return found
    raise RuntimeError(f"none of {known} is above process {os.getpid()}")
