# SPDX-License-Identifier: Apache-2.0
"""What a power loss could take from a disk, traced at the file-system calls of this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_TRACED: list[Unsynced] = []


class Unsynced:
    """Names below `root` that are newer than the last sync of their folder, and unsynced contents.

    :ivar before: called before each naming of a file and each sync; may raise, as a kill would.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: set[Path] = set()
        self.contents: set[Path] = set()
        self.named_hollow: set[Path] = set()
        """Files that were renamed or linked before their contents were synced."""
        self.before: Callable[[str, Path], None] = lambda call, path: None

    def calls(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self.contents.add(Path(arguments[0]))
            self.names.add(Path(arguments[0]))
        elif event == "os.mkdir" and not Path(arguments[0]).exists():
            self.names.add(Path(arguments[0]))
        elif event in {"os.link", "os.rename"}:
            source, target = Path(arguments[0]), Path(arguments[1])
            self.before(event, target)
            if source in self.contents:
                self.named_hollow.add(target)
            self.names.add(target)
        elif event == "os.remove":
            self.names.discard(Path(arguments[0]))

    def synced(self, path: Path) -> None:
        self.before("fsync", path)
        self.contents.discard(path)
        self.names = {name for name in self.names if name.parent != path}

    def lost(self) -> list[str]:
        """Return what a power loss now might take, except for scratch files."""
        there = {name for name in self.names if name.exists() and not name.name.startswith(".raybatch-")}
        return sorted(name.relative_to(self.root).as_posix() for name in there)


@contextlib.contextmanager
def traced(root: Path, patch: pytest.MonkeyPatch) -> Iterator[Unsynced]:
    """Trace this process's calls below `root`, which must not exist yet."""
    trace, fsync = Unsynced(root.parent), os.fsync

    def synced(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        trace.synced(path)
        fsync(number)

    patch.setattr(os, "fsync", synced)
    _TRACED.append(trace)
    try:
        yield trace
    finally:
        _TRACED.remove(trace)
        patch.undo()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for trace in _TRACED:
        if arguments and isinstance(arguments[0], (str, os.PathLike)):
            path = os.fspath(arguments[0])
            if isinstance(path, str) and path.startswith(str(trace.root)):
                trace.calls(event, arguments)


sys.addaudithook(_hook)  # it stays: Python can't remove an audit hook
