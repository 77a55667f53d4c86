# SPDX-License-Identifier: Apache-2.0
"""The end of a batch: its files, its counts and its usage, from the manifest of its dataset.

Several processes may end one batch. They make the same records of its files, and the first end counts.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from airflow_provider_raybatch.batch_api.store.ids import output_file_id
from airflow_provider_raybatch.batch_api.store.records import (
    BatchEnd,
    BatchRecord,
    BatchState,
    FileRecord,
    StoredPiece,
    Usage,
)
from airflow_provider_raybatch.batch_api.store.store import BatchStore, new_nonce
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchError,
    BatchOutcome,
    Decision,
    RequestCounts,
)
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest, parse_manifest
from airflow_provider_raybatch.storage.errors import StorageError

_log = logging.getLogger(__name__)

PUBLISHING = 600.0
"""Seconds that a job without a task gets to publish, once it is decided how its batch ends."""


def dataset_of(batch_id: str) -> str:
    """The destination of a batch's job, below the root."""
    return f"{layout.batch_folder(batch_id)}/{layout.BATCH_DATASET}"


def manifest_of(store: BatchStore, batch_id: str, uri: str | None = None) -> BatchManifest | None:
    """The manifest of a batch whose job has published its dataset; ``None`` before that.

    :param uri: of one manifest, by default the newest; only its name counts.
    :raises SpecError: it is not a manifest of this version.
    :raises StorageError: the storage does not answer.
    """
    name = layout.NEWEST_MANIFEST if uri is None else f"{layout.MANIFESTS}/{_last(uri)}"
    path = f"{dataset_of(batch_id)}/{name}"
    if store.root.head(path) is None:
        return None
    return parse_manifest(store.root.read(path), f"{store.root.uri}/{path}")


def has_dataset(store: BatchStore, batch_id: str) -> bool:
    """Whether a job has claimed the destination of the batch, which it does before it writes a row.

    :raises StorageError: the storage does not answer.
    """
    return store.root.holds(dataset_of(batch_id))


def end_of(store: BatchStore, state: BatchState, manifest: BatchManifest) -> BatchEnd:
    """End a batch whose dataset is published; returns the end that counts.

    :param state: of the batch; where no outcome is decided, ``completed`` is.
    :raises RaybatchError: the manifest names files that are not of this batch.
    :raises StorageError: the storage does not answer; another call goes on.
    """
    if state.ended is not None:
        return state.ended
    record, counts = state.record, manifest.counts
    outcome = state.outcome or decided(store, record.id, "completed")
    output = _kept(store, record, manifest, "output", _answers(record.id, manifest))
    errors = _kept(store, record, manifest, "error", _failures(store, record.id, manifest))
    end = BatchEnd(
        decision=outcome.decision,
        decided_at=outcome.at,
        at=time.time(),
        nonce=new_nonce(),
        counts=RequestCounts(
            total=counts.input, completed=counts.ok, failed=counts.error - counts.unanswered
        ),
        usage=Usage(
            input_tokens=manifest.tokens.input,
            cached_tokens=manifest.tokens.cached,
            output_tokens=manifest.tokens.output,
            reasoning_tokens=manifest.tokens.reasoning or 0,
        ),
        output_file_id=output,
        error_file_id=errors,
        errors=outcome.errors,
        cost=manifest.cost,
        currency=None if manifest.cost is None else manifest.currency,
    )
    return store.end(record.id, end)


def end_from_manifest(store: BatchStore, state: BatchState) -> BatchEnd | None:
    """End a batch from what its job has published; ``None`` where that is nothing, or can't be used.

    :raises StorageError: the storage does not answer; another call goes on.
    """
    try:
        manifest = manifest_of(store, state.record.id)
        return None if manifest is None else end_of(store, state, manifest)
    except StorageError:
        raise
    except RaybatchError as error:
        _log.error("%s can't be ended from its manifest: %s", state.record.id, error)
        return None


def end_without_job(
    store: BatchStore, state: BatchState, decision: Decision, errors: Sequence[BatchError] = ()
) -> BatchEnd:
    """End a batch that has no dataset, and gets none any more; returns the end that counts.

    :param decision: unless another one is made already. A batch that its job has decided to complete, and
        then could not publish, fails.
    :param errors: of a batch that fails.
    :raises StorageError: the storage does not answer; another call goes on.
    """
    if state.ended is not None:
        return state.ended
    outcome = state.outcome or decided(store, state.record.id, decision, errors)
    ends_as = "failed" if outcome.decision == "completed" else outcome.decision
    end = BatchEnd(
        decision=ends_as,
        decided_at=outcome.at,
        at=time.time(),
        nonce=new_nonce(),
        counts=state.counts,  # as clients have seen them, so that they don't go back
        errors=outcome.errors or (list(errors) if ends_as == "failed" else []),
    )
    return store.end(state.record.id, end)


def decided(
    store: BatchStore, batch_id: str, decision: Decision, errors: Sequence[BatchError] = ()
) -> BatchOutcome:
    """How a batch ends: by `decision`, unless another one was made before."""
    wanted = BatchOutcome(decision=decision, at=time.time(), nonce=new_nonce(), errors=list(errors))
    return store.decide(batch_id, wanted)


def _kept(
    store: BatchStore,
    record: BatchRecord,
    manifest: BatchManifest,
    kind: Literal["output", "error"],
    pieces: list[StoredPiece],
) -> str | None:
    """Keep the record of a file that the batch has made; ``None`` where it would be empty."""
    if not pieces:
        return None
    # The time of the manifest, so that whoever ends the batch writes the same record and index key.
    made_at = _made_at(record, manifest)
    file = FileRecord(
        id=output_file_id(record.id, kind),
        owner=record.owner,
        filename=f"{record.id}_{kind}.jsonl",
        purpose="batch_output",
        bytes=sum(piece.bytes for piece in pieces),
        created_at=made_at,
        expires_at=made_at + record.outputs_expire_after,
        content=pieces,
        batch_id=record.id,
    )
    store.add_file(file)
    return file.id


def _made_at(record: BatchRecord, manifest: BatchManifest) -> float:
    """When the dataset was made, in epoch seconds."""
    try:
        return datetime.fromisoformat(manifest.created_at).timestamp()
    except (ValueError, OverflowError) as error:
        raise _unusable(record.id, f"created_at {shown(manifest.created_at)}, which is not a time") from error


def _answers(batch_id: str, manifest: BatchManifest) -> list[StoredPiece]:
    folder = f"{layout.DATA}/{_last(manifest.uri)}"
    found = []
    for file in manifest.files:
        path = f"{folder}/{file.path}"
        if posixpath.normpath(path) != path or layout.commit_of(path) is None:
            raise _unusable(batch_id, f"{file.path!r}, which is not a file of its dataset")
        if file.bytes and file.rows:
            found.append(StoredPiece(path=f"{dataset_of(batch_id)}/{path}", bytes=file.bytes))
    return found


def _failures(store: BatchStore, batch_id: str, manifest: BatchManifest) -> list[StoredPiece]:
    if manifest.errors_uri is None:
        return []
    folder = f"{layout.ERRORS}/{_last(manifest.errors_uri)}"
    if layout.commit_of(f"{folder}/any") is None:
        raise _unusable(batch_id, f"{manifest.errors_uri!r}, which is not a file of its dataset")
    listed = store.root.list(f"{dataset_of(batch_id)}/{folder}")
    return [StoredPiece(path=entry.path, bytes=entry.size) for entry in listed if entry.size]


def _last(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def _unusable(batch_id: str, what: str) -> RaybatchError:
    message = f"{batch_id}: its manifest has {what}; create the batch again."
    return RaybatchError(message, FailureClass.USER_ERROR)
