# SPDX-License-Identifier: Apache-2.0
"""What a DAG run asks for: the batch that its configuration names, and whether its input can be answered.

Whoever may trigger the DAG writes any configuration, so only the signed record of a batch counts.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from airflow_provider_raybatch.batches.store import BatchStore
from airflow_provider_raybatch.batches.validation import CheckedFile, FileLimits, validate
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.batch_api.ids import is_batch_id
from airflow_provider_raybatch.contract.batch_api.records import BatchError, BatchRecord, StoredPiece
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

BATCH_ID = "batch_id"
"""The only key of a DAG run's configuration."""
_REMEDY = "create batches by the Batch API, which triggers their runs"


def asked_batch(store: BatchStore, conf: object, *, run_id: str, dag_id: str, model: str) -> BatchRecord:
    """The record of the batch that a DAG run is for.

    :param conf: of the DAG run.
    :param model: the name of the model that the DAG serves.
    :raises RaybatchError: this run may not answer that batch, or there is none.
    """
    if not isinstance(conf, dict) or set(conf) != {BATCH_ID}:
        raise _refused(f"conf: {_keys(conf)}, and it must be {{{BATCH_ID!r}: ...}} alone")
    batch_id: Any = conf[BATCH_ID]
    if not isinstance(batch_id, str) or not is_batch_id(batch_id):
        raise _refused(f"conf: {BATCH_ID} {shown(batch_id)} is not the id of a batch")
    if run_id != batch_id:
        raise _refused(f"conf: {BATCH_ID} {batch_id} is not the id of this run, {shown(run_id)}")
    record = store.record(batch_id)
    if record is None or record.id != batch_id:
        raise _refused(f"conf: {BATCH_ID} {batch_id}: there is no such batch below {store.root.uri}")
    if record.dag_id != dag_id:
        raise _refused(f"conf: {BATCH_ID} {batch_id} is a batch of DAG {record.dag_id!r}, not of {dag_id!r}")
    if record.model != model:
        raise _refused(
            f"conf: {BATCH_ID} {batch_id} is a batch of model {record.model!r}, and this DAG serves {model!r}"
        )
    return record


def checked_input(store: BatchStore, record: BatchRecord, limits: FileLimits) -> CheckedFile:
    """Read the whole input of a batch once, and check each line.

    :raises StorageError: the storage does not answer.
    """
    if any(store.root.head(piece.path) is None for piece in record.input):
        error = BatchError(
            code="file_not_found",
            message="The input file was deleted before the batch began; upload it again.",
            param="input_file_id",
        )
        return CheckedFile(0, None, [error])
    with io.BufferedReader(_Pieces(store, record.input), _BLOCK) as content:
        return validate(cast(BinaryIO, content), endpoint=record.endpoint, model=record.model, limits=limits)


_BLOCK = 1024 * 1024


class _Pieces(io.RawIOBase):
    """The pieces of a file as one stream."""

    def __init__(self, store: BatchStore, pieces: Sequence[StoredPiece]) -> None:
        self._root = store.root
        self._left = list(pieces)
        self._open: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._open is not None or self._left:
            if self._open is None:
                piece = self._left.pop(0)
                self._open = self._root.open(piece.path, piece.bytes)
            if content := self._open.read(len(buffer)):
                buffer[: len(content)] = content
                return len(content)
            self._open.close()
            self._open = None
        return 0

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        super().close()


def _keys(conf: object) -> str:
    return f"it has the keys {shown(sorted(map(str, conf)))}" if isinstance(conf, dict) else "there is none"


def _refused(what: str) -> RaybatchError:
    return RaybatchError(f"{what}; {_REMEDY}.", FailureClass.USER_ERROR)
