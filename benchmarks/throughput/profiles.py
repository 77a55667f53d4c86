# SPDX-License-Identifier: Apache-2.0
"""What the threads of vLLM's engine processes do while a job works on them, by py-spy."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from types import TracebackType

import psutil
from cpu_rates import kind_of

RATE = 200
"""Samples a second. py-spy does not stop the process for one, so some of its stacks can't be read."""


class Profiles:
    """A context manager that profiles all engine processes which are there when it begins.

    Stacks that wait count as well: they say for what. Prints a JSON line for each process with the file of
    its stacks, one a line, with the number of samples behind it.

    :param name: of the lines.
    :param folder: of the files.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._running: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Profiles:
        self._folder.mkdir(parents=True, exist_ok=True)
        for process in psutil.process_iter():
            if kind_of(process) == "engine":
                stacks = self._folder / f"{self._name}-{process.pid}.txt"
                command = ["py-spy", "record", "--format", "raw", "--output", str(stacks), "--pid"]
                command += [str(process.pid), "--rate", str(RATE), "--idle", "--threads", "--nonblocking"]
                self._running.append((stacks, subprocess.Popen(command, stdout=subprocess.DEVNULL)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stacks, recorder in self._running:
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
            print("PROFILE", json.dumps({"system": self._name, "stacks": str(stacks)}), flush=True)
