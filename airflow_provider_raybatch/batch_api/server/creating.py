# SPDX-License-Identifier: Apache-2.0
"""Create a batch once, whichever server dies when, and however often the client repeats the call.

First the log of creates gets an entry with the batch's id, then come the batch's record, its DAG run, and the
note that the run is there. A repeated call, or a look at the batch, does what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_raybatch.batch_api.server.access import Caller, may_use
from airflow_provider_raybatch.batch_api.server.limits import ApiLimits, check_new_batch
from airflow_provider_raybatch.batch_api.server.new_batch import NewBatch
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError, wrong_field
from airflow_provider_raybatch.batch_api.server.runs import AirflowRuns, RunRefusedError
from airflow_provider_raybatch.batch_api.server.upkeep import settled, trigger
from airflow_provider_raybatch.batch_api.store.creates import (
    Chooser,
    CreateCall,
    CreateEntry,
    CreateLog,
    by_body,
    by_key,
)
from airflow_provider_raybatch.batch_api.store.ending import decided, end_without_job
from airflow_provider_raybatch.batch_api.store.records import BatchRecord, BatchState, FileRecord
from airflow_provider_raybatch.batch_api.store.settings import ServedModel
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.batch_api.store.validation import check_start
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchError
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.text import json_digest

RUN_REFUSED = "dag_run_refused"
"""The error of a batch whose DAG run Airflow did not make. A repeated create makes another batch."""


@dataclass(frozen=True)
class BatchCreation:
    """One call that creates a batch.

    :param call: when it came, and how often it was repeated.
    :param key: of its header ``Idempotency-Key``.
    """

    caller: Caller
    batch: NewBatch
    call: CreateCall
    key: str | None = None

    def log(self, store: BatchStore) -> CreateLog:
        """The log of the calls that may mean the same batch."""
        owner, batch = self.caller.id, self.batch
        if self.key is not None:
            sameness = ["key", owner, self.key]
        elif batch.idempotency_key is not None:
            sameness = ["metadata", owner, batch.idempotency_key, batch.input_file_id]
        else:
            sameness = ["body", owner, self.caller.token, batch.digest]
        return CreateLog(store, json_digest(sameness))

    def chooser(self, store: BatchStore) -> Chooser:
        """Which of their batches this call means."""
        now = time.time()
        if self.key is None and self.batch.idempotency_key is None:
            chosen = by_body(self.call, now)
        else:
            chosen = by_key(lambda batch_id: store.record(batch_id) is not None, now)

        def usable(newest_first: Iterable[CreateEntry]) -> CreateEntry | None:
            found = chosen(newest_first)
            if found is None or _was_refused(store, found.batch_id):
                return None
            if self.key is not None and found.body != self.call.body:
                raise OpenAiError(
                    400,
                    "Idempotency-Key: it was used for another body before; use a new key for a new batch.",
                    code="idempotency_error",
                )
            return found

        return usable


@dataclass(frozen=True)
class BatchCreator:
    """Creates batches in the name of one caller.

    :param models: as configured, by name.
    :param limits: of each user.
    """

    models: Mapping[str, ServedModel]
    limits: ApiLimits
    runs: AirflowRuns

    def created(self, store: BatchStore, creation: BatchCreation) -> BatchState:
        """The batch that a call means; a new one has its DAG run, too.

        :raises OpenAiError: it can't be created, or Airflow does not answer.
        """
        log, chosen = creation.log(store), creation.chooser(store)
        known = log.find(chosen)
        if known is not None and (state := store.state(known.batch_id)) is not None:
            if not state.triggered and not state.is_over:
                store.add_batch(state.record)  # a server that died there has not listed it
            return _triggered(store, settled(store, state), self.runs)
        file, model, errors = _checked(store, creation, self.models)
        check_new_batch(store, creation.caller.id, self.limits)
        if model is not None:
            self.runs.check(model.dag_id, model.name)
        entry = log.claim(chosen, creation.call.entry(time.time()))
        if model is None:
            # Before the record: a batch without a model has no DAG, so it must never be there undecided.
            decided(store, entry.batch_id, "failed", errors)
        record = store.add_batch(_record(creation, file, model, entry, strict=self.limits.strict))
        if model is None:
            settled(store, store.state(record.id) or BatchState(record))
            return BatchState(record)  # validating, as each batch is when it is created
        return _triggered(store, store.state(record.id) or BatchState(record), self.runs)


def _triggered(store: BatchStore, state: BatchState, runs: AirflowRuns) -> BatchState:
    if state.triggered or state.outcome is not None or state.is_over:
        return state
    try:
        return trigger(store, state, runs)
    except RunRefusedError as refusal:
        # The client gets an error and no batch, so none may be left that runs later.
        error = BatchError(code=RUN_REFUSED, message=str(refusal), param=refusal.param)
        end_without_job(store, state, "failed", [error])
        raise


def _was_refused(store: BatchStore, batch_id: str) -> bool:
    state = store.state(batch_id)
    return state is not None and state.ended is not None and any(
        error.code == RUN_REFUSED for error in state.ended.errors
    )  # fmt: skip


def _record(
    creation: BatchCreation, file: FileRecord, model: ServedModel | None, entry: CreateEntry, *, strict: bool
) -> BatchRecord:
    batch = creation.batch
    return BatchRecord(
        id=entry.batch_id,
        owner=creation.caller.id,
        dag_id="" if model is None else model.dag_id,
        model="" if model is None else model.name,
        endpoint=batch.endpoint,
        input_file_id=batch.input_file_id,
        input=file.content,
        input_lines=file.lines,
        window=batch.window,
        created_at=entry.at,  # the same, whichever call writes the record
        expires_at=entry.at + batch.seconds,
        outputs_expire_after=batch.outputs_expire_after,
        strict=strict,
        metadata=batch.metadata,
    )


def _checked(
    store: BatchStore, creation: BatchCreation, models: Mapping[str, ServedModel]
) -> tuple[FileRecord, ServedModel | None, list[BatchError]]:
    """The input, and its model; without a model, what is wrong with a file that names none.

    :raises OpenAiError: the file or its model can't be used.
    """
    file = _input(store, creation)
    batch = creation.batch
    (piece,) = file.content  # as of each upload
    with store.root.open(piece.path, piece.bytes) as content:
        found = check_start(content, endpoint=batch.endpoint)
    if found.model is None:
        return file, None, found.errors
    return file, _model(creation, found.model, models), []


def _input(store: BatchStore, creation: BatchCreation) -> FileRecord:
    file_id, now = creation.batch.input_file_id, time.time()
    file = store.file(file_id)
    if file is None or file.owner != creation.caller.id or file.expires_at <= now:
        raise _of_file(file_id, "is not a file of yours", "upload it with purpose='batch'")
    if file.purpose != "batch":
        raise _of_file(
            file_id, f"has the purpose {file.purpose!r}", "upload its content with purpose='batch'"
        )
    if file.expires_at < now + creation.batch.seconds:
        raise _of_file(
            file_id,
            f"is deleted in {(file.expires_at - now) / 3600:.1f} h, before the window of the batch ends",
            "upload it with a later expires_after, or choose a shorter completion_window",
        )
    return file


def _of_file(file_id: str, why: str, remedy: str) -> OpenAiError:
    return wrong_field("input_file_id", f"{shown(file_id)} {why}; {remedy}")


def _model(creation: BatchCreation, name: str, models: Mapping[str, ServedModel]) -> ServedModel:
    model, endpoint = models.get(name), creation.batch.endpoint
    if model is None or not may_use(creation.caller, model):
        raise OpenAiError(
            404,
            f"The model {shown(name)} does not exist or you do not have access to it; GET /models has yours.",
            param="model",
            code="model_not_found",
        )
    if endpoint not in model.endpoints:
        raise wrong_field(
            "endpoint",
            f"the model {name!r} answers {', '.join(model.endpoints)}, but not {endpoint}; use one of these, "
            "or another model",
        )
    return model
