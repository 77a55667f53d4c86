# SPDX-License-Identifier: Apache-2.0
"""Which processes use the cores while an engine works."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from types import TracebackType

import psutil

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


class CpuRates:
    """A context manager that samples all processes of the machine once a second, and prints a JSON line.

    Mean cores that each kind of process uses, and how many are busy of those that this process may use. Only
    seconds count in which vLLM's engine process is busy for at least 0.6 of the time, so neither imports nor
    compilation.

    :param name: of the line.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._cores: Counter[str] = Counter()
        self._seconds = self._busy = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CpuRates:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        seconds = max(self._seconds, 1.0)
        line = {
            "system": self._name,
            "seconds": round(self._seconds, 1),
            "cores": {kind: round(spent / seconds / 1000, 2) for kind, spent in self._cores.most_common()},
            "busy": round(self._busy / seconds, 2),
            "allowed": len(os.sched_getaffinity(0)),
        }
        print("CPU", json.dumps(line), flush=True)

    def _run(self) -> None:
        allowed = os.sched_getaffinity(0)
        before, at = used(), time.monotonic()
        psutil.cpu_percent(percpu=True)
        while not self._is_over.wait(1.0):
            after, now = used(), time.monotonic()
            busy = psutil.cpu_percent(percpu=True)
            spent: Counter[str] = Counter()
            for pid, (kind, cpu) in after.items():
                spent[kind] += cpu - before.get(pid, (kind, cpu))[1]
            if spent["engine"] >= 1000 * BUSY * (now - at):
                self._cores.update(spent)
                self._seconds += now - at
                self._busy += sum(busy[core] for core in allowed) / 100 * (now - at)
            before, at = after, now


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
