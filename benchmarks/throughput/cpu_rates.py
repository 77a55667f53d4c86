# SPDX-License-Identifier: Apache-2.0
"""Which processes use the cores while an engine works."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import psutil
from sampled import Sampled

BUSY = 0.6
KINDS = {
    "EngineCore": "engine",
    "raybatch::FrontEnd": "front end",
    "Replica": "replica",
    "Coordinator": "coordinator",
    "airflow_provider_raybatch.job": "driver",
    "llm_generate.py": "script",
    "raylet": "raylet",
    "gcs_server": "gcs",
}


class CpuRates(Sampled):
    """A context manager that samples all processes of the machine once a second, and prints a JSON line.

    Mean cores that each kind of process uses, and how many are busy of those that this process may use. Only
    seconds count in which vLLM's engine process is busy for at least 0.6 of the time, so neither imports nor
    compilation.

    :param name: of the line.
    """

    def __init__(self, name: str) -> None:
        super().__init__(interval=1.0)
        self._name = name
        self._allowed = os.sched_getaffinity(0)
        self._cores: Counter[str] = Counter()
        self._seconds = self._busy = 0.0
        self._before, self._at = used(), time.monotonic()
        psutil.cpu_percent(percpu=True)

    def sample(self) -> None:
        """Count the CPU time since the last call."""
        after, now = used(), time.monotonic()
        busy = psutil.cpu_percent(percpu=True)
        passed = now - self._at
        spent: Counter[str] = Counter()
        for pid, (kind, cpu) in after.items():
            spent[kind] += cpu - self._before.get(pid, (kind, cpu))[1]
        if spent["engine"] >= 1000 * BUSY * passed:
            self._cores.update(spent)
            self._seconds += passed
            self._busy += sum(busy[core] for core in self._allowed) / 100 * passed
        self._before, self._at = after, now

    def show(self) -> None:
        """Print the line."""
        seconds = max(self._seconds, 1.0)
        line = {
            "system": self._name,
            "seconds": round(self._seconds, 1),
            "cores": {kind: round(spent / seconds / 1000, 2) for kind, spent in self._cores.most_common()},
            "busy": round(self._busy / seconds, 2),
            "allowed": len(self._allowed),
        }
        print("CPU", json.dumps(line), flush=True)


def used() -> dict[int, tuple[str, int]]:
    """Return kind and CPU milliseconds of each process so far."""
    found = {}
    for process in psutil.process_iter():
        try:
            times = process.cpu_times()
            found[process.pid] = kind_of(process), round(1000 * (times.user + times.system))
        except psutil.Error:
            continue  # it has ended
    return found


def kind_of(process: psutil.Process) -> str:
    title = " ".join(process.cmdline()) or process.name()
    return next((kind for text, kind in KINDS.items() if text in title), "others")
