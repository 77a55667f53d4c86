# SPDX-License-Identifier: Apache-2.0
"""The `request_log` of echo engines, which does not depend on the reports of a job."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class Engine:
    """The life of one engine, from its log.

    :param asked: prompts and when they were started (epoch seconds), in that order.
    :param generated: prompts and when their answers were there, in that order.
    """

    pid: int
    submission: str
    opened: float
    asked: list[tuple[str, float]] = field(default_factory=list)
    generated: list[tuple[str, float]] = field(default_factory=list)

    def most_beside(self, chosen: Callable[[str], bool]) -> int:
        """Return how many requests ran at a time until the last of the chosen was answered; 0 without any."""
        end = max((at for text, at in self.generated if chosen(text)), default=0.0)
        changes = [(at, 1) for _, at in self.asked] + [(at, -1) for _, at in self.generated]
        return max(itertools.accumulate(change for at, change in sorted(changes) if at < end), default=0)


def engines(folder: Path) -> list[Engine]:
    """Read all logs in `folder`; skip a line that is still being written."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        pid = int(file.stem.rpartition("-")[2])
        for line in file.read_bytes().split(b"\n")[:-1]:
            event = json.loads(line)
            if event["event"] == "open":
                found.append(Engine(pid, event["submission"], event["at"]))
            elif event["event"] == "start":
                found[-1].asked.append((event["prompt"], event["at"]))
            elif event["event"] == "end":
                found[-1].generated.append((event["prompt"], event["at"]))
    return found


@contextmanager
def killing_one(folder: Path, answered: int) -> Iterator[list[int]]:
    """Kill the first engine's process that has answered so many requests, within two minutes.

    Its id is in the list from then on.
    """
    killed = list[int]()

    def kill() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            working = [engine for engine in engines(folder) if len(engine.generated) >= answered]
            if working:
                psutil.Process(working[0].pid).kill()
                killed.append(working[0].pid)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    yield killed
    killer.join()
