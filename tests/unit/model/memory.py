# SPDX-License-Identifier: Apache-2.0
"""A folder in memory whose calls are steps; events may come before a step, and a power loss takes names."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, BinaryIO

import pytest

from airflow_provider_raybatch.storage.errors import StorageError, TakenError
from airflow_provider_raybatch.storage.file import Entry, in_order


def nothing(call: str) -> None:
    """Do nothing before a step, the default."""


@dataclass
class Memory:
    """See :class:`~airflow_provider_raybatch.storage.folder.Folder`.

    A file appears at once, and survives a power loss only after the next step, the sync of its folder.
    Folders themselves always survive.

    :param before: called before each step with its name; may raise, as a kill does, or run another job.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    durable: dict[str, bytes] = field(default_factory=dict)
    before: Callable[[str], None] = nothing
    uri: str = "/model/out"
    thread: int = field(default_factory=threading.get_ident)

    @contextlib.contextmanager
    def unstepped(self) -> Iterator[None]:
        """Make calls without steps."""
        before, self.before = self.before, nothing
        try:
            yield
        finally:
            self.before = before

    def lose_power(self) -> None:
        """Forget the names that were not synced; deletions that were not synced are undone."""
        self.files = dict(self.durable)

    def _step(self, call: str) -> None:
        if threading.get_ident() == self.thread:  # parallel reads belong to their listing's step
            self.before(call)

    def _entry(self, path: str) -> Entry:
        return Entry(path, len(self.files[path]), str(hash(self.files[path])))

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        self._step(f"list {prefix}")
        inside = [path for path in self.files if not prefix or f"{path}/".startswith(f"{prefix}/")]
        return [self._entry(path) for path in sorted(inside)]

    def head(self, path: str) -> Entry | None:
        self._step(f"head {path}")
        return self._entry(path) if path in self.files else None

    def read(self, path: str) -> bytes:
        self._step(f"read {path}")
        if path not in self.files:
            raise StorageError(f"{path}: can't read it (No such file or directory).")
        return self.files[path]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def write(self, path: str, content: bytes | IO[bytes]) -> None:
        self._step(f"write {path}")
        self.files[path] = content if isinstance(content, bytes) else content.read()
        self.sync(path.rpartition("/")[0])

    def create(self, path: str, content: bytes) -> None:
        self._step(f"create {path}")
        if path in self.files:
            raise TakenError(f"destination: {path} exists already.")
        self.files[path] = content
        self.sync(path.rpartition("/")[0])

    def replace(self, path: str, old: bytes | None, new: bytes) -> None:
        self._step(f"replace {path}")
        if self.files.get(path) != old:
            raise TakenError(f"destination: {path} has changed.")
        self.files[path] = new
        self.sync(path.rpartition("/")[0])

    def sync(self, path: str = "") -> None:
        self._step(f"sync {path}")
        for one in {*self.files, *self.durable}:
            if one.rpartition("/")[0] != path:
                continue
            if one in self.files:
                self.durable[one] = self.files[one]
            else:
                del self.durable[one]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._step(f"delete {path}")
            self.files.pop(path, None)

    def abandoned(self, age: float) -> Sequence[str]:
        return ()


def unthreaded(patch: pytest.MonkeyPatch) -> None:
    """Let processes read files one after the other, so that each run of a process has the same steps."""
    threaded = in_order  # this module is one of those whose name changes
    for module in list(sys.modules.values()):
        if vars(module).get("in_order") is threaded:
            patch.setattr(module, "in_order", lambda function, items, at_once=1: map(function, items))
