# SPDX-License-Identifier: Apache-2.0
"""Digests of what the requests of a run depend on, by name: a later run logs why rows are asked again.

They lie in the run's folder of parts and in a response store. Only that line of the log depends on them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.parts.ledger import Ledger
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder

Asked = dict[str, str]
"""Digests by name."""

_DIGESTS = {"model": "the model's files", "tokenizer": "the tokenizer", "chat_template": "the chat template"}


def asked_by(spec: BatchInferenceSpec, defaults: Mapping[str, Any], digests: Any) -> Asked:
    """What the requests of a job depend on.

    :param defaults: sampling parameters of the model's `generation_config`.
    :param digests: of model, tokenizer and chat template.
    """
    values = {**spec.deciding, "the model's generation_config": dict(defaults)}
    values |= {name: getattr(digests, field) for field, name in _DIGESTS.items()}
    if digests.adapters:
        values["the adapters' files"] = digests.adapters
    return {name: json_digest(value) for name, value in values.items()}


def _newest(folder: Folder, paths: list[str]) -> Asked | None:
    """Of the newest of these files; ``None`` where none can be read."""
    newest: dict[str, Any] = {}
    for path in paths:
        try:
            found = json.loads(folder.read(path))
            newest = max(newest, found, key=lambda one: one.get("at", 0.0))
        except (StorageError, ValueError, AttributeError, TypeError):
            continue
    asked = newest.get("asked")
    return asked if isinstance(asked, dict) else None


def keep(job: Job, now: Asked) -> None:
    """Write the digests beside the run's parts."""
    job.folder.write(f"{job.run_folder}/{layout.ASKED}", _document(now))


def keep_in_store(store: Folder, job: Job, now: Asked) -> None:
    """Write the digests for the task's next run. A failure means only that its log says less."""
    with contextlib.suppress(StorageError):
        store.write(_in_store(job), _document(now))


def asked_again(job: Job, earlier: Ledger, store: Folder | None, now: Asked) -> str | None:
    """Why rows that this task has asked before are asked again; ``None`` if unknown.

    :param store: folder of the response store, if the job has one.
    """
    configuration = job.run_folder.rpartition("-")[0]
    others = [file.path for file in earlier.files if not file.path.startswith(f"{configuration}-")]
    if len(others) < len(earlier.files):
        return None  # earlier parts have responses to these very requests
    if others and job.spec.on_clear == "regenerate":
        return "all rows are asked again, since the task was cleared and on_clear is 'regenerate'"
    before = _newest(job.folder, [path for path in others if path.endswith(f"/{layout.ASKED}")])
    if before is None and store is not None:
        before = _newest(store, [_in_store(job)])
    names = [name for name, digest in now.items() if (before or {}).get(name, digest) != digest]
    if not names:
        return None
    what = f"{', '.join(names[:-1])} and {names[-1]} have" if len(names) > 1 else f"{names[0]} has"
    return f"since the task's last run {what} changed: rows whose request is another one now are asked again"


def _in_store(job: Job) -> str:
    if job.spec.submission is None:
        raise ValueError("submission: only a submitted job has a task")
    task = job.spec.submission.task
    name = json_digest([task.namespace, task.dag_id, task.task_id, task.map_index])
    return f"{layout.STORE_ASKED}/{name}.json"


def _document(now: Asked) -> bytes:
    return json.dumps({"at": time.time(), "asked": now}).encode()
