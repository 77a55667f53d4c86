# SPDX-License-Identifier: Apache-2.0
"""A batch in the hands of its task: from the check of its input to its end.

Each step may be the last of a process. The next attempt sees by the documents which steps are done. Whoever
may trigger the DAG writes any configuration, so only the signed record of a batch counts.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, get_args

from airflow_provider_raybatch.batch_api.store.ending import (
    PUBLISHING,
    dataset_of,
    end_of,
    end_without_job,
    has_dataset,
    manifest_of,
)
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord, BatchState, Started
from airflow_provider_raybatch.batch_api.store.settings import required_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store, new_nonce
from airflow_provider_raybatch.batch_api.store.validation import (
    STRICT_LIMITS,
    CheckedFile,
    FileLimits,
    validate,
)
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchError, BatchOutcome, ServedBatch
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import batch_folder
from airflow_provider_raybatch.contract.run_numbers import EarlyEnd

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningBatch:
    """A batch whose DAG run is going on.

    :param aws_conn_id: of the bucket that it lies in.
    :param limits: of its input.

    All methods raise :class:`StorageError` where the storage does not answer, and the next attempt goes on.
    """

    store: BatchStore
    record: BatchRecord
    aws_conn_id: str | None
    limits: FileLimits

    @property
    def locations(self) -> dict[str, Any]:
        """Arguments of the operator: where its input and its dataset lie."""
        return {
            "source": [f"{self.store.root.uri}/{piece.path}" for piece in self.record.input],
            "destination": f"{self.store.root.uri}/{dataset_of(self.record.id)}",
        }

    @property
    def served(self) -> ServedBatch:
        """What its job knows of it."""
        place = f"{self.store.root.uri}/{batch_folder(self.record.id)}"
        return ServedBatch(folder=place, expires_at=self.record.expires_at)

    def end_before_job(self) -> BatchEnd | None:
        """Check and start it; the end of one that needs no job (any more), else ``None``."""
        state = self.state()
        if state.ended is not None:
            _log.info("Batch %s has ended already, so nothing is done.", self.record.id)
            return state.ended
        if state.started is None:
            if state.outcome is not None:
                return end_without_job(self.store, state, state.outcome.decision)
            if time.time() >= self.record.expires_at:
                return end_without_job(self.store, state, "expired")
            if (errors := self._start()) or self.state().outcome is not None:
                return end_without_job(self.store, self.state(), "failed", errors)
            return None
        return self.end_if_over() or self._expired_or_not_begun(state)

    def _expired_or_not_begun(self, state: BatchState) -> BatchEnd | None:
        """End a batch that is cancelled or has expired, if no job has begun with it: none is needed then.

        That the window has passed is decided here, too, since the cluster may be away.
        """
        outcome = state.outcome
        if outcome is None and time.time() >= self.record.expires_at:
            outcome = self.store.decide(
                self.record.id, BatchOutcome(decision="expired", at=time.time(), nonce=new_nonce())
            )
        if outcome is None or outcome.decision not in get_args(EarlyEnd):
            return None
        if has_dataset(self.store, self.record.id):
            return None
        return end_without_job(self.store, self.state(), outcome.decision)

    def _start(self) -> list[BatchError]:
        """Note that the input is valid; its errors where it isn't."""
        checked = self._checked_input()
        if checked.errors:
            _log.info("The input of batch %s is not valid: %d errors.", self.record.id, len(checked.errors))
            return checked.errors
        _log.info("The input of batch %s is valid: %d requests.", self.record.id, checked.lines)
        started = Started(at=time.time(), total=checked.lines, nonce=new_nonce())
        self.store.start(self.record.id, started)
        return []

    def _checked_input(self) -> CheckedFile:
        (piece,) = self.record.input  # as of each upload
        if self.store.root.head(piece.path) is None:
            error = BatchError(
                code="file_not_found",
                message="The input file was deleted before the batch began; upload it again.",
                param="input_file_id",
            )
            return CheckedFile(0, None, [error])
        with self.store.root.open(piece.path, piece.bytes) as content:
            return validate(
                content, endpoint=self.record.endpoint, model=self.record.model, limits=self.limits
            )

    def end(self, manifest_uri: str | None = None) -> BatchEnd:
        """End it by the dataset that its job has published.

        :param manifest_uri: of that dataset; by default the newest.
        :raises RaybatchError: there is no manifest.
        """
        state = self.state()
        if state.ended is not None:
            return state.ended
        manifest = manifest_of(self.store, self.record.id, manifest_uri)
        if manifest is None:
            raise RaybatchError(
                f"{self.record.id}: its job has ended, and its dataset has no manifest; a retry looks again.",
                FailureClass.STORAGE,
            )
        return end_of(self.store, state, manifest)

    def end_if_over(self) -> BatchEnd | None:
        """Its end, whatever becomes of its job, if it has ended or failed, or its dataset is published.

        ``None`` where its job, or another one, has something to do for it.
        """
        state = self.state()
        if state.ended is not None:
            return state.ended
        if state.outcome is not None and state.outcome.decision == "failed":
            return end_without_job(self.store, state, "failed", [self._error()])
        manifest = manifest_of(self.store, self.record.id)
        return None if manifest is None else end_of(self.store, state, manifest)

    def end_without_result(self, why: str = "") -> BatchEnd | None:
        """End it, since no further attempt is made and nothing is published.

        :param why: without content, for the client; a clause.
        :return: ``None`` where its job has decided a moment ago how it ends, and may publish yet. The server
            then ends it by what its job leaves.
        """
        state = self.state()
        outcome = state.outcome
        if outcome is not None and outcome.decision != "failed" and time.time() - outcome.at < PUBLISHING:
            return None
        return end_without_job(self.store, state, "failed", [self._error(why)])

    def _error(self, why: str = "") -> BatchError:
        # Content-free: what went wrong is for the administrator, in the log of the DAG run.
        because = f", since {why}" if why else ""
        message = (
            f"The batch could not be run{because}; its DAG run is {self.record.id} of {self.record.dag_id}."
        )
        return BatchError(code="server_error", message=message)

    def state(self) -> BatchState:
        """It as it is now.

        :raises RaybatchError: its record was deleted.
        """
        state = self.store.state(self.record.id)
        if state is None:
            raise RaybatchError(
                f"{self.record.id}: its record was deleted while it ran; create the batch again.",
                FailureClass.USER_ERROR,
            )
        return state


def running_batch(given: object, limits: FileLimits, *, run_id: str, dag_id: str, model: str) -> RunningBatch:
    """The batch that a DAG run is for.

    :param given: the configuration of the run.
    :param limits: the model's; OpenAI's come on top where a strict server has taken the batch.
    :param model: the name of the model that the DAG serves.
    :raises RaybatchError: this run may not answer that batch, or there is none.
    :raises SpecError: a setting of the Batch API can't be used.
    """
    settings = required_settings()
    store = batch_store(settings)
    if given != {"batch_id": run_id}:
        raise _refused(f"it must be {{'batch_id': {run_id!r}}}, the id of this run, but it is {shown(given)}")
    record = store.record(run_id)
    if record is None or record.id != run_id:
        raise _refused(f"there is no batch {shown(run_id)} below {store.root.uri}")
    if (record.dag_id, record.model) != (dag_id, model):
        raise _refused(
            f"{run_id} is a batch of DAG {record.dag_id!r} and model {record.model!r}, and this is DAG "
            f"{dag_id!r}, which serves {model!r}"
        )
    if record.strict:
        limits = limits.within(STRICT_LIMITS)
    return RunningBatch(store, record, settings.aws_conn_id, limits)


def _refused(what: str) -> RaybatchError:
    return RaybatchError(
        f"conf: {what}; create batches by the Batch API, which triggers their runs.", FailureClass.USER_ERROR
    )
