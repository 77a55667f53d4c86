# SPDX-License-Identifier: Apache-2.0
"""What echo engines say of themselves: their `request_log`, which owes nothing to what a job reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Engine:
    """One engine's life, from its log.

    :param asked: prompts and when they were started (epoch seconds), in that order.
    :param generated: prompts and when their answers were there, in that order.
    """

    pid: int
    submission: str
    opened: float
    asked: list[tuple[str, float]] = field(default_factory=list)
    generated: list[tuple[str, float]] = field(default_factory=list)


def engines(folder: Path) -> list[Engine]:
    """From all logs in `folder`; a line that is being written is left out."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        pid = int(file.stem.rpartition("-")[2])
        for line in file.read_bytes().split(b"\n")[:-1]:
            told = json.loads(line)
            if told["event"] == "open":
                found.append(Engine(pid, told["submission"], told["at"]))
            elif told["event"] == "start":
                found[-1].asked.append((told["prompt"], told["at"]))
            elif told["event"] == "end":
                found[-1].generated.append((told["prompt"], told["at"]))
    return found
