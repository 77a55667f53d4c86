# SPDX-License-Identifier: Apache-2.0
"""Batches of the Batch API as the server leaves them, and manifests of their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.ending import dataset_of
from airflow_provider_raybatch.batch_api.store.ids import new_batch_id, new_file_id
from airflow_provider_raybatch.batch_api.store.records import (
    BatchEnd,
    BatchRecord,
    BatchState,
    FileRecord,
    StoredPiece,
)
from airflow_provider_raybatch.batch_api.store.settings import BatchApiSettings, required_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store, new_nonce
from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchOutcome,
    BatchProgress,
    Decision,
    RequestCounts,
)
from airflow_provider_raybatch.contract.events import Committed
from airflow_provider_raybatch.contract.layout import CONTENT, PROGRESS, batch_folder, file_folder
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.fake_ray import FakeRay, Script

SECRET = "the secret of the Airflow of these tests"
COMMIT = "20260102T030405-0123abcd"
MADE_AT = 1767322800.0
MODEL = "small"
DAY = 86_400.0
ANSWER = {"custom_id": "a", "response": {"status_code": 200}}


def store_at(root: Path | str) -> BatchStore:
    return batch_store(BatchApiSettings(str(root), None, SECRET.encode()))


def configured(monkeypatch: pytest.MonkeyPatch, root: Path | str, aws_conn_id: str = "") -> BatchStore:
    """Set up the Batch API for this process."""
    settings = {"ROOT": str(root), "AWS_CONN_ID": aws_conn_id, "SECRET": SECRET}
    for name, value in settings.items():
        monkeypatch.setenv(f"AIRFLOW__RAYBATCH__BATCH_API_{name}", value)
    return batch_store(required_settings())


def line(number: int, model: str = MODEL, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"question {number}"}]
    return {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": messages, **body},
    }


def lines(count: int = 3) -> bytes:
    """A batch file."""
    return b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(count))


def stored(store: BatchStore, pieces: Mapping[str, bytes], **fields: Any) -> FileRecord:
    """A file of a user.

    :param pieces: its content by path.
    """
    for path, content in pieces.items():
        store.root.write(path, content)
    now, size = time.time(), sum(map(len, pieces.values()))
    given: dict[str, Any] = {
        "id": new_file_id(), "owner": "ann", "filename": "r.jsonl", "purpose": "batch", "bytes": size,
        "created_at": now, "expires_at": now + 30 * DAY,
        "content": [StoredPiece(path=path, bytes=len(content)) for path, content in pieces.items()],
    }  # fmt: skip
    record = FileRecord(**{**given, **fields})
    store.add_file(record)
    return record


def uploaded(store: BatchStore, content: bytes, **fields: Any) -> FileRecord:
    """A file that a user has uploaded."""
    file_id = new_file_id()
    place = f"{file_folder(file_id)}/{CONTENT}"
    return stored(store, {place: content}, id=file_id, lines=content.count(b"\n"), **fields)


def batch_record(created_at: float | None = None, window: float = DAY, **fields: Any) -> BatchRecord:
    """The record of a batch whose input is nowhere."""
    at = time.time() if created_at is None else created_at
    given: dict[str, Any] = {
        "id": new_batch_id(), "owner": "ann", "dag_id": f"batches_{MODEL}", "model": MODEL,
        "endpoint": "/v1/chat/completions", "input_file_id": f"file-{'0' * 32}", "input": [],
        "created_at": at, "expires_at": at + window, "outputs_expire_after": 30 * DAY,
    }  # fmt: skip
    return BatchRecord(**{**given, **fields})


def created(store: BatchStore, content: bytes | None = None, rows: int = 3, **fields: Any) -> BatchRecord:
    """Upload a file and create a batch of it, as the server does."""
    file = uploaded(store, lines(rows) if content is None else content, owner=fields.get("owner", "ann"))
    of_file = {"input_file_id": file.id, "input": file.content, "input_lines": file.lines}
    return store.add_batch(batch_record(**of_file, **fields))


def write_progress(
    store: BatchStore, batch_id: str, completed: int, at: float | None = None, total: int = 3
) -> None:
    """What a job writes while it asks."""
    counts = RequestCounts(total=total, completed=completed)
    progress = BatchProgress(at=time.time() if at is None else at, counts=counts)
    store.root.write(f"{batch_folder(batch_id)}/{PROGRESS}", progress.model_dump_json().encode())


class DyingError(Exception):
    """The process is dead."""


def dying(patch: pytest.MonkeyPatch, store: BatchStore, most: int, *, is_done: bool = False) -> None:
    """Let a process die when it has created `most` documents, at the next one.

    :param is_done: whether that one is there when it dies.
    """
    create, left = type(store.root).create, iter(range(most))

    def create_or_die(folder: Any, path: str, content: bytes) -> None:
        lives = next(left, None) is not None
        if lives or is_done:
            create(folder, path, content)
        if not lives:
            raise DyingError

    patch.setattr(type(store.root), "create", create_or_die)


def files_of(store: BatchStore, owner: str = "ann") -> list[str]:
    """Ids of a user's files, newest first."""
    return [one.id for one in store.files(owner)]


def batches_of(store: BatchStore, owner: str = "ann") -> list[str]:
    """Ids of a user's batches, newest first."""
    return [one.id for one in store.batches(owner)]


def state_of(store: BatchStore, record: BatchRecord) -> BatchState:
    state = store.state(record.id)
    assert state is not None
    return state


def ended_of(store: BatchStore, record: BatchRecord) -> BatchEnd:
    """The end of a batch that has ended."""
    ended = store.ended(record.id)
    assert ended is not None
    return ended


def published(
    store: BatchStore,
    record: BatchRecord,
    answers: Mapping[str, int],
    failures: Mapping[str, int] | None = None,
    **fields: Any,
) -> BatchManifest:
    """Write a dataset as a job does: `answers` and `failures` are lines by file."""
    place = f"{store.root.uri}/{dataset_of(record.id)}"
    failures = failures or {}
    text = json.dumps(ANSWER).encode() + b"\n"
    for folder, files in (("data", answers), ("errors", failures)):
        for name, lines in files.items():
            store.root.write(f"{dataset_of(record.id)}/{folder}/{COMMIT}/{name}", lines * text)
    ok, error = sum(answers.values()), sum(failures.values())
    given: dict[str, Any] = {
        "uri": f"{place}/data/{COMMIT}",
        "manifest_uri": f"{place}/manifests/{COMMIT}.json",
        "errors_uri": f"{place}/errors/{COMMIT}" if failures else None,
        "format": "openai_batch",
        "files": [
            {"path": name, "rows": lines, "bytes": lines * len(text)} for name, lines in answers.items()
        ],
        "schema": [],
        "counts": {"input": ok + error, "ok": ok, "error": error},
        "owner": TaskKey(namespace="n", dag_id="d", run_id="r", task_id="t"),
        "run_token": "1-token",
        "submission_id": "job",
        "created_at": "2026-01-02T03:00:00+00:00",
    }
    manifest = BatchManifest(**{**given, **fields})
    content = manifest.model_dump_json(by_alias=True).encode()
    for name in (f"manifests/{COMMIT}.json", "manifest.json"):
        store.root.write(f"{dataset_of(record.id)}/{name}", content)
    return manifest


def answering(
    store: BatchStore,
    record: BatchRecord,
    answers: int = 2,
    failures: int = 1,
    decision: Decision = "completed",
) -> Callable[[FakeRay, dict[str, Any]], Script]:
    """What a fake cluster does for the batch: it publishes answers, and decides that the batch is done."""

    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        manifest = published(store, record, {"part-00000.jsonl": answers}, {"part-00000.jsonl": failures})
        store.decide(record.id, BatchOutcome(decision=decision, at=time.time(), nonce=new_nonce()))
        return Script(last=[ray.line(body, Committed(summary=manifest.summary()))])

    return script


def content_of(folder: Folder, file: FileRecord) -> bytes:
    """What a client gets who fetches a file."""
    return b"".join(folder.read(piece.path) for piece in file.content)
