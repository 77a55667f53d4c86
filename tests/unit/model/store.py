# SPDX-License-Identifier: Apache-2.0
"""A response store in memory whose calls are steps, and its invariants."""

from __future__ import annotations

import copy
import functools
import itertools
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.reuse.store import compaction, data, index, segment, store
from airflow_provider_raybatch.job.reuse.store.compaction import GRACE
from airflow_provider_raybatch.job.reuse.store.segment import Segment
from tests.support.responses import START, Shop, table

from .memory import Memory, unthreaded

SHORT = 3600.0
"""`max_age` of a submission whose responses expire."""


@dataclass
class Disk(Memory):
    """A folder whose files have scratch names until they are whole.

    :param now: the time.
    :param scratch: when each scratch file was written.
    """

    now: float = START
    scratch: dict[str, float] = field(default_factory=dict)

    def write(self, path: str, content: bytes) -> None:
        self._step(f"scratch {path}")
        name = f"{path}.{len(self.scratch)}"
        self.scratch[name] = self.now
        self._step(f"write {path}")
        del self.scratch[name]
        self.files[path] = content
        self.sync(path.rpartition("/")[0])

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            super().delete([path])
            self.scratch.pop(path, None)

    def abandoned(self, age: float) -> list[str]:
        self._step("abandoned")
        return [path for path, at in self.scratch.items() if at < self.now - age]


def one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Let each process have one thread, and files and segments few rows."""

    def parquet_file(stream: Any, metadata: Any = None) -> pq.ParquetFile:
        return pq.ParquetFile(stream, metadata=metadata)

    unthreaded(patch)
    for module in (segment, data):
        patch.setattr(module, "parquet_file", parquet_file)
    for module in (segment, compaction):
        patch.setattr(module, "ROWS_PER_SEGMENT", 2)
    patch.setattr(store, "MOST_RANGES", 2)
    patch.setattr(data, "ROWS_PER_FILE", 2)
    numbers = itertools.count()
    patch.setattr(compaction.uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))


@dataclass
class World:
    """A store and its users.

    :param reported: names whose responses were reported as stored, without an expiry.
    """

    disk: Disk = field(default_factory=Disk)
    reported: set[object] = field(default_factory=set)

    @property
    def shop(self) -> Shop:
        return Shop(self.disk, self.disk.now)

    def add(self, submission: str, names: Iterable[object], max_age: float | None = None) -> None:
        listed = list(names)
        self.shop.store(max_age).add(submission, [table(listed)])
        self.reported |= set(listed) if max_age is None else set()

    def compact(self) -> None:
        shop = self.shop
        shop.store().compact()
        assert shop.notices == []

    def read_all(self, names: Iterable[object] = range(10)) -> dict[object, tuple[str, str]]:
        """Check that every answer is right, and that all reported ones are there."""
        expected = set(self.reported)
        shop = self.shop
        found = shop.answers(names)
        assert shop.notices == []
        assert all(response == f"to {name}" for name, (response, _) in found.items())
        assert expected <= set(found), "a stored response is gone"
        return found

    def later(self, seconds: float) -> None:
        self.disk.now += seconds

    def check(self) -> None:
        """Check what must hold at every instant."""
        with self.disk.unstepped():
            self.read_all()

    def check_end(self) -> None:
        """Check that left-overs go once all is quiet: a day later, with the second compaction."""
        for _ in range(2):
            self.later(GRACE + SHORT + 1)
            self.compact()
        self.check()
        files = {entry.path for entry in self.disk.list("v1/data") if entry.path.endswith(".parquet")}
        assert files == self.named(), "data without an entry, or entries without data"
        assert self.disk.scratch == {}, "scratch files stay"
        assert self.shop.store().size().rows == len(self.read_all()), "entries without a use stay"

    def named(self) -> set[str]:
        return {name for entry in index.segments(self.disk) for name in Segment(self.disk, entry).files}


@functools.cache
def _shelf() -> World:
    world = World()
    world.add("a", [0, 1, 2])
    world.add("b", [2, 3])
    world.add("short", [8, 9], SHORT)
    world.later(GRACE + SHORT + 1)
    return world


def shelf() -> World:
    """Return a store with two submissions that share an answer, and one whose answers have just expired."""
    return copy.deepcopy(_shelf())


Act = Callable[[World], Any]
