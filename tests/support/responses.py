# SPDX-License-Identifier: Apache-2.0
"""Responses to put into a store, and a store with a fixed clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.job.request.key_array import Keys, from_arrow
from airflow_provider_raybatch.job.reuse.store.files import data_file, segment_file
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.tasks.generate import output_type
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder

DAY = 24 * 3600
START = 1_750_000_000


def digest(name: object) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()


def output(text: str) -> dict[str, Any]:
    completion = {"text": text, "finish_reason": "stop", "output_tokens": 1}
    first = {"response": text, "finish_reason": "stop", "input_tokens": 2, "cached_tokens": 0}
    return {**first, "output_tokens": 1, "completions": [completion]}


def table(names: Iterable[object], answer: str = "to", failed: Sequence[object] = ()) -> pa.Table:
    """Return a row for each name, answered by ``<answer> <name>``; `failed` ones have no output."""
    listed = list(names)
    outputs = [None if name in failed else output(f"{answer} {name}") for name in listed]
    keys = pa.array([digest(name) for name in listed], pa.binary(16))
    return pa.table({"key": keys, "output": pa.array(outputs, output_type(True))})


def sorted_keys(names: Iterable[object]) -> Keys:
    return np.unique(from_arrow(pa.array([digest(name) for name in names], pa.binary(16))))


def stored(submission: str) -> str:
    """Return the path of the first data file of a submission that was added at the start."""
    return data_file(submission, START, 0)


def indexed(submission: str) -> str:
    """Return the path of the first segment of a submission that was added at the start."""
    return segment_file(submission, START, 0)


@dataclass
class Shop:
    """A store with its clock and its notices."""

    folder: Folder
    now: float = START
    notices: list[str] = field(default_factory=list)

    def store(self, max_age: float | None = None) -> ResponseStore:
        return ResponseStore(self.folder, self.hear, max_age, lambda: self.now)

    def hear(self, notice: Notice) -> None:
        self.notices.append(notice.text())

    def answers(self, names: Iterable[object], max_age: float | None = None) -> dict[object, tuple[str, str]]:
        """Return response and payer for each name that has one, and check key and position."""
        listed = list(names)
        store, keys = self.store(max_age), sorted_keys(listed)
        by_key = {digest(name): name for name in listed}
        found: dict[object, tuple[str, str]] = {}
        for rows in store.read(store.lookup(keys)):
            for row in rows.to_pylist():
                assert keys[row["position"]] == np.frombuffer(row["key"], dtype="S16")[0]
                name = by_key[row["key"]]
                assert name not in found
                assert row["output"] == output(row["output"]["response"])
                found[name] = (row["output"]["response"], row["paid_by"])
        return found


def write_much(root: str, writer: int) -> None:
    # So many adds start a compaction, so these processes compact at the same time, too.
    shop = Shop(LocalFolder(root))
    for turn in range(10):
        first = writer * 600 + turn * 60
        rows = pa.concat_tables([table(range(first, first + 60)), table([f"shared {turn}"])])
        shop.store().add(f"w{writer}-{turn}", [rows])
    assert shop.notices == []


@dataclass(frozen=True)
class Faulty:
    """A folder that calls `fault` before it reads, writes or lists paths that contain `word`."""

    inner: Folder
    word: str
    fault: Any
    calls: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return self.inner.uri

    def __getattr__(self, name: str) -> Any:
        def call(path: Any = "", *arguments: Any) -> Any:
            self.calls.append((name, str(path), int(arguments[1]) if name == "read_range" else 0))
            if self.word in str(path):
                self.fault(name, path)
            return getattr(self.inner, name)(path, *arguments)

        return call


def raising(*operations: str) -> Any:
    def fault(operation: str, path: str) -> None:
        if operation in operations:
            raise StorageError(f"{path}: can't {operation} it (500 Internal Server Error).")

    return fault
