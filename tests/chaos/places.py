# SPDX-License-Identifier: Apache-2.0
"""A run's destination, read from outside: the phase of its job, and the written rows."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq

from .workload import prompt_of

PHASES = ("before claim", "generating", "publishing", "after commit")
_JOURNAL = "_raybatch/journal/"
_PART = re.compile(r"^_raybatch/parts/.+\.parquet$")


class Place(Protocol):
    """A destination. Times are epoch seconds."""

    def files(self) -> dict[str, float]:
        """Return when each file got its name, by its path below the destination."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""


@dataclass(frozen=True)
class Disk:
    """A destination on a local disk."""

    root: Path

    def files(self) -> dict[str, float]:
        found = {}
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names if not name.startswith(".raybatch-")):
                # A whole file is renamed or linked to its name, which sets this time.
                with suppress(FileNotFoundError):
                    found[str(path.relative_to(self.root))] = path.stat().st_ctime
        return found

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


@dataclass(frozen=True)
class Part:
    """A part of the ledger.

    :param prompts: the answered prompts; failed rows have no answer.
    """

    appeared: float
    prompts: frozenset[str]


@dataclass
class Parts:
    """All parts of a destination. Each is read once, because parts never change."""

    place: Place
    _read: dict[str, Part] = field(default_factory=dict)

    def all(self) -> list[Part]:
        for path, appeared in self.place.files().items():
            if _PART.match(path) and path not in self._read:
                self._read[path] = Part(appeared, frozenset(_answered(self.place.read(path))))
        return list(self._read.values())


def _answered(content: bytes) -> Iterator[str]:
    table = pq.ParquetFile(io.BytesIO(content)).read(["ok", "input"])
    for ok, row in zip(table["ok"].to_pylist(), table["input"].to_pylist(), strict=True):
        if ok:
            yield prompt_of(row)


def phase(place: Place) -> str:
    """Return the phase of a task's newest run, by the present content of its folder; one of `PHASES`."""
    files = place.files()
    entries = sorted(path for path in files if path.startswith(_JOURNAL) and path.endswith(".json"))
    if not entries:
        return PHASES[0]
    if json.loads(place.read(entries[-1]))["kind"] == "commit":
        return PHASES[3]
    claimed = files[entries[-1]]
    publishing = any(path.startswith(("data/", "manifests/")) and at > claimed for path, at in files.items())
    return PHASES[2] if publishing else PHASES[1]
