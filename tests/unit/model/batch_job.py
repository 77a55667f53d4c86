# SPDX-License-Identifier: Apache-2.0
"""A job that answers a batch of the Batch API: its watch is the real one, its steps are the driver's."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from airflow_provider_raybatch.batch_api.store.ending import dataset_of
from airflow_provider_raybatch.batch_api.store.records import BatchRecord
from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.monitor import served_batch
from airflow_provider_raybatch.job.monitor.served_batch import BatchWatch
from airflow_provider_raybatch.storage.errors import TakenError
from airflow_provider_raybatch.storage.file import Entry

from .memory import Memory

ROWS = 2
BATCH = f"batch_{'0' * 32}"


@dataclass
class Disk(Memory):
    """A folder in memory, with depth and prefixes."""

    def list(self, prefix: str = "", depth: int | None = None) -> list[Entry]:
        found = super().list(prefix)
        return [one for one in found if depth is None or "/" not in one.path[len(prefix) + 1 :]]

    def holds(self, prefix: str) -> bool:
        return bool(self.list(prefix))

    def sync(self, path: str = "") -> None:
        """Do nothing: power losses have a model of their own."""


@dataclass(frozen=True)
class _Place:
    """The folder of the batch, as a job knows it."""

    disk: Disk
    prefix: str

    @property
    def uri(self) -> str:
        return f"{self.disk.uri}/{self.prefix}"

    def head(self, path: str) -> Entry | None:
        return self.disk.head(f"{self.prefix}/{path}")

    def read(self, path: str) -> bytes:
        return self.disk.read(f"{self.prefix}/{path}")

    def create(self, path: str, content: bytes) -> None:
        self.disk.create(f"{self.prefix}/{path}", content)

    def write(self, path: str, content: bytes) -> None:
        self.disk.write(f"{self.prefix}/{path}", content)


class Served(Protocol):
    """The world of a job."""

    disk: Disk
    record: BatchRecord


@dataclass
class Job:
    """A job: its watch is the real one, and its steps are those of the driver."""

    world: Served
    number: int
    token: int
    claimed: int | None = None
    watch: BatchWatch = field(init=False)

    def __post_init__(self) -> None:
        self.place = dataset_of(BATCH)
        self.disk = self.world.disk
        served = ServedBatch(folder=f"/model/out/batches/{BATCH}", expires_at=self.world.record.expires_at)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(served_batch, "folder", lambda *_: _Place(self.disk, f"batches/{BATCH}"))
            self.watch = BatchWatch(served)

    def run(self) -> str:
        self.watch._look()
        if not self.watch.asks_no_more:
            try:
                return self._answer()
            except Exception as error:
                if not self.watch.is_ended_by(error):
                    raise
        return self._end_batch() or self._answer()

    def _answer(self) -> str:
        self.watch.check()
        if (committed := self._claim()) is not None:
            return committed
        rows = self._answered()
        self._observe(rows)
        for row in set(range(ROWS)) - rows.keys():
            self.watch._look()
            self.watch.check()
            self._check_claim()
            part = f"{self.place}/parts/{row}-{self.number}"
            self.disk.write(part, b"answer")
            rows[row] = part
            self._observe(rows)
        return self._publish(rows)

    def _end_batch(self) -> str | None:
        if self.claimed is None and (committed := self._claim()) is not None:
            return committed
        rows = self._answered()
        self._observe(rows)
        if self.watch.ending is None and len(rows) < ROWS:
            return None
        return self._publish(rows)

    def _publish(self, rows: dict[int, str]) -> str:
        if self.watch.ending is None:
            self.watch.complete()
        self._check_claim()
        commit = f"20260102T030405-{self.number:08x}"
        left = sorted(set(range(ROWS)) - rows.keys())
        data, errors = f"data/{commit}", f"errors/{commit}"
        files = []
        if rows:
            content = b"".join(b"%d\n" % row for row in sorted(rows))
            files = [{"path": "part-0.jsonl", "rows": len(rows), "bytes": len(content)}]
            self.disk.write(f"{self.place}/{data}/part-0.jsonl", content)
        if left:
            content = b"".join(b"%d\n" % row for row in left)
            self.disk.write(f"{self.place}/{errors}/part-0.jsonl", content)
        uri = f"{self.disk.uri}/{self.place}"
        counts: dict[str, Any] = {"input": ROWS, "ok": len(rows), "error": len(left)}
        if left:
            counts["errors_by_step"] = {str(self.watch.ending): len(left)}
        fields = {
            "uri": f"{uri}/{data}",
            "manifest_uri": f"{uri}/manifests/{commit}.json",
            "errors_uri": f"{uri}/{errors}" if left else None,
            "format": "openai_batch",
            "files": files,
            "schema": [],
            "counts": counts,
            "owner": {"namespace": "n", "dag_id": "d", "run_id": "r", "task_id": "t"},
            "run_token": str(self.token),
            "submission_id": str(self.number),
            "created_at": f"2026-01-02T03:00:{self.number:02d}+00:00",
        }
        manifest = parse(BatchManifest, fields)
        text = manifest.model_dump_json(by_alias=True).encode()
        self.disk.write(f"{self.place}/manifests/{commit}.json", text)
        assert self.claimed is not None
        self._create(self.claimed + 1, {"token": self.token, "commit": commit})
        self._after_commit()
        return manifest.manifest_uri

    def _after_commit(self) -> None:
        """Copy the newest manifest, by the journal; then delete data that no commit names."""
        copy = f"{self.place}/manifest.json"
        for _ in range(3):
            old = self.disk.read(copy) if self.disk.head(copy) is not None else None
            newest = self._commits()[-1]
            new = self.disk.read(f"{self.place}/manifests/{newest}.json")
            try:
                self.disk.replace(copy, old, new)
            except TakenError:
                continue
            break
        data = self.disk.list(f"{self.place}/data")
        commits = self._commits()
        if "commit" in self._journal()[-1]:
            self.disk.delete(one.path for one in data if one.path.split("/")[-2] not in commits)

    def _commits(self) -> list[str]:
        return [one["commit"] for one in self._journal() if "commit" in one]

    def _claim(self) -> str | None:
        """Claim the destination; the manifest, if this run has committed it."""
        entries = self._journal()
        mine = [one for one in entries if one.get("commit") and one["token"] == self.token]
        if mine and entries[-1] == mine[-1]:
            self._after_commit()
            return f"{self.disk.uri}/{self.place}/manifests/{mine[-1]['commit']}.json"
        if entries and entries[-1]["token"] > self.token:
            raise _superseded()
        self._create(len(entries), {"token": self.token, "job": self.number})
        self.claimed = len(entries)
        return None

    def _journal(self) -> list[dict[str, Any]]:
        found = self.disk.list(f"{self.place}/_raybatch/journal")
        return [json.loads(self.disk.files[one.path]) for one in found]

    def _create(self, number: int, entry: dict[str, Any]) -> None:
        try:
            self.disk.create(f"{self.place}/_raybatch/journal/{number:08d}.json", json.dumps(entry).encode())
        except TakenError:
            raise _superseded() from None

    def _check_claim(self) -> None:
        if len(self._journal()) - 1 != self.claimed:
            raise _superseded()

    def _answered(self) -> dict[int, str]:
        parts = self.disk.list(f"{self.place}/parts")
        return {int(one.path.rpartition("/")[2].partition("-")[0]): one.path for one in parts}

    def _observe(self, rows: dict[int, str]) -> None:
        self.watch.observe(ROWS, len(rows), 0)
        self.watch._write()


def _superseded() -> RaybatchError:
    return RaybatchError("destination: another job has it.", FailureClass.SUPERSEDED)
