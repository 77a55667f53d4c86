# SPDX-License-Identifier: Apache-2.0
"""What a job leaves at its destination, as far as a report is looked for: journal, manifest, report."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_raybatch.contract.layout import (
    PARTS,
    REPORT_DATA,
    journal_entry,
    manifest_file,
    report_folder,
)
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.storage.folder import Folder

NAMESPACE = "this-airflow"
COMMIT = "20261127T010203-0123abcd"
SECRET = "<b>the content of a row</b>"


def key(dag_id: str = "nightly", run_id: str = "night", task_id: str = "label", **fields: Any) -> TaskKey:
    return TaskKey(**{
        "namespace": NAMESPACE,
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        **fields,
    })


def entry(number: int, owner: TaskKey, kind: str = "commit", commit: str = COMMIT, **fields: Any) -> bytes:
    """An entry of a journal."""
    published = {"manifest": manifest_file(commit), "run_token": "1", "fingerprint": ""}
    made = {
        "number": number,
        "kind": kind,
        "owner": owner.model_dump(),
        "run_token": "1",
        "submission_id": "job-1",
        "at": "2026-11-27T01:02:03+00:00",
        "nonce": f"{number}",
        "published": published,
    }
    return json.dumps({**made, **fields}).encode()


def manifest(owner: TaskKey, **fields: Any) -> bytes:
    """A manifest of 3 good rows and a failed one."""
    made = {
        "uri": "s3://elsewhere/data",
        "manifest_uri": "s3://elsewhere/manifest",
        "dead_letter_uri": "s3://elsewhere/dead",
        "format": "parquet",
        "files": [{"path": "part-00000.parquet", "rows": 3, "bytes": 4096}],
        "schema": [{"name": "response", "type": "string"}],
        "counts": {"input": 4, "ok": 3, "error": 1, "errors_by_step": {"engine": 1}},
        "owner": owner.model_dump(),
        "run_token": "1",
        "submission_id": "job-1",
        "created_at": "2026-11-27T01:05:00+00:00",
    }
    return json.dumps({**made, **fields}).encode()


def report(task: TaskKey, **fields: Any) -> bytes:
    """A report with content."""
    failed = {"ordinal": 2, "reason": "the prompt is empty", "request": SECRET, "row": SECRET}
    made = {
        "rows": 3,
        "errors": 1,
        "total": 4,
        "seconds": 12.5,
        "cost": 1.25,
        "currency": "USD",
        "state": "committed",
        "failures": [{"step": "engine", "rows": 1, "reason": "the prompt is empty", "examples": [failed]}],
        "answers": [{"text": SECRET, "rows": 3}],
        "samples": [{"ordinal": 0, "request": SECRET, "response": SECRET}],
        "created_at": "2026-11-27T01:05:00+00:00",
        "task": task.model_dump(),
        "submission_id": "job-1",
        "uri": "javascript:alert(1)",
    }
    return json.dumps({**made, **fields}).encode()


def publish(folder: Folder, owner: TaskKey, number: int = 1, commit: str = COMMIT, **fields: Any) -> None:
    """Write a dataset's documents.

    :param fields: of the report.
    """
    folder.write(journal_entry(number), entry(number, owner, commit=commit))
    folder.write(manifest_file(commit), manifest(owner))
    folder.write(f"{report_folder(commit)}/{REPORT_DATA}", report(owner, **fields))


def leave(folder: Folder, owner: TaskKey, **fields: Any) -> None:
    """Write the report of a job that published nothing."""
    made = {"state": "failed", "failure": "the engine died", "created_at": "2026-11-27T02:00:00+00:00"}
    content = report(owner, **{**made, **fields})
    folder.write(f"{PARTS}/{owner.digest[:16]}/{REPORT_DATA}", content)
