# SPDX-License-Identifier: Apache-2.0
"""Batches of the Batch API as the server leaves them, and manifests of their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batches.ending import dataset_of
from airflow_provider_raybatch.batches.settings import BatchApiSettings, required_settings
from airflow_provider_raybatch.batches.store import BatchStore, batch_store, new_nonce
from airflow_provider_raybatch.contract.batch_api.ids import new_batch_id, new_file_id
from airflow_provider_raybatch.contract.batch_api.records import (
    BatchOutcome,
    BatchRecord,
    Decision,
    FileRecord,
    StoredPiece,
)
from airflow_provider_raybatch.contract.batch_api.states import BatchState
from airflow_provider_raybatch.contract.events import Committed
from airflow_provider_raybatch.contract.layout import CONTENT, file_folder
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.fake_ray import FakeRay, Script

SECRET = "the secret of the Airflow of these tests"
COMMIT = "20260102T030405-0123abcd"
MADE_AT = 1767322800.0
MODEL = "small"
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


def created(
    store: BatchStore, content: bytes | None = None, rows: int = 3, window: float = 86400, **fields: Any
) -> BatchRecord:
    """Upload a file and create a batch of it, as the server does."""
    if content is None:
        content = b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(rows))
    now = time.time()
    file_id = new_file_id()
    piece = StoredPiece(path=f"{file_folder(file_id)}/{CONTENT}", bytes=len(content))
    store.root.write(piece.path, content)
    owner = fields.setdefault("owner", "ann")
    store.add_file(
        FileRecord(
            id=file_id,
            owner=owner,
            filename="requests.jsonl",
            purpose="batch",
            bytes=len(content),
            created_at=now,
            expires_at=now + 30 * 86400,
            content=[piece],
            lines=content.count(b"\n"),
        )
    )
    given: dict[str, Any] = {
        "id": new_batch_id(),
        "dag_id": f"batches_{MODEL}",
        "model": MODEL,
        "endpoint": "/v1/chat/completions",
        "input_file_id": file_id,
        "input": [piece],
        "input_lines": content.count(b"\n"),
        "created_at": now,
        "expires_at": now + window,
        "outputs_expire_after": 30 * 86400.0,
    }
    record = BatchRecord(**{**given, **fields})
    store.add_batch(record)
    return record


def state_of(store: BatchStore, record: BatchRecord) -> BatchState:
    state = store.state(record.id)
    assert state is not None
    return state


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
