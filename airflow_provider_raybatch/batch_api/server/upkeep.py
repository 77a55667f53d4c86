# SPDX-License-Identifier: Apache-2.0
"""What a look at a batch completes because whoever should have done it has died.

No process owns a batch. So a server that was killed before it had made the DAG run, or a task that was killed
before it had ended the batch, is noticed by the next look at the batch, at whichever server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.runs import AirflowRuns
from airflow_provider_raybatch.batch_api.store.ending import (
    PUBLISHING,
    decided,
    end_from_manifest,
    end_without_job,
)
from airflow_provider_raybatch.batch_api.store.records import BatchState
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchError

_log = logging.getLogger(__name__)

_ALIVE = 60.0
"""Seconds: a driver renews its progress every few of them, so it lives if that is younger."""
_QUEUED = 6
"""Times the interval: a run in Airflow's queue ends only by hand, and many batches may wait there."""
_MOST_LOOKS = 20_000
LONGEST_WAIT = 6 * 3600.0
"""Seconds: a batch is passed only by batches that were created at most this much later."""
_LINES_A_SECOND = 100.0
"""A batch lets pass what is created while it would run at about this pace, the pace of one good GPU."""


def run_after(created_at: float, lines: int) -> datetime:
    """The `run_after` of a batch's DAG run, always in the past, so that Airflow may start it at once.

    Airflow starts a DAG's queued runs in this order: small batches pass large ones, and age wins in the end.

    :param created_at: epoch seconds.
    :param lines: of its input.
    """
    wait = min(lines / _LINES_A_SECOND, LONGEST_WAIT)
    return datetime.fromtimestamp(created_at, UTC) - timedelta(seconds=LONGEST_WAIT - wait)


def trigger(store: BatchStore, state: BatchState, runs: AirflowRuns) -> BatchState:
    """Make the DAG run of a batch, and note that it is there.

    :raises OpenAiError: see :meth:`AirflowRuns.trigger`.
    """
    record = state.record
    runs.trigger(record.dag_id, record.id, run_after(record.created_at, record.input_lines), record.model)
    store.mark_triggered(record.id, time.time())
    return replace(state, triggered=True)


def settled(store: BatchStore, state: BatchState) -> BatchState:
    """End a batch that needs no job any more: it is decided, or its window has passed, before its task began.

    A task that begins later sees the decision, since it looks for one after it has noted that it began.
    """
    if state.is_over or state.started is not None:
        return state
    if state.outcome is None:
        if time.time() < state.record.expires_at:
            return state
        decided(store, state.record.id, "expired")
        state = _again(store, state)
    if state.started is None and state.outcome is not None:
        end_without_job(store, state, state.outcome.decision, state.outcome.errors)
        state = _again(store, state)
    return state


class Upkeep:
    """The looks of one process.

    :param interval: seconds between two questions to Airflow about one batch.
    :param at_once: questions to Airflow; looks beyond that show what is written.
    """

    def __init__(self, interval: float = 10.0, at_once: int = 4) -> None:
        self._interval = interval
        self._free = threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, float] = OrderedDict()

    def looked_after(self, store: BatchStore, state: BatchState, runs: AirflowRuns) -> BatchState:
        """The batch after what was missing is done.

        Where Airflow refuses or does not answer, the batch is as it was; a later look tries again.
        """
        state = settled(store, state)
        if state.is_over or _is_alive(state):
            return state
        with self._turn(state) as is_due:
            if not is_due:
                return state
            if state.triggered:
                return self._after_its_run(store, state, runs)
            if state.outcome is None:
                try:
                    return trigger(store, state, runs)
                except OpenAiError as error:
                    _log.warning("%s has no DAG run yet: %s", state.record.id, error)
        return state

    def _after_its_run(self, store: BatchStore, state: BatchState, runs: AirflowRuns) -> BatchState:
        """End a batch whose run is over, from what its job has published."""
        record = state.record
        if not runs.is_over(record.dag_id, record.id):
            return state
        state = _again(store, state)  # its task may have ended it just before
        if state.is_over:
            return state
        if end_from_manifest(store, state) is not None:
            return _again(store, state)
        return _without_manifest(store, state)

    @contextmanager
    def _turn(self, state: BatchState) -> Iterator[bool]:
        """Whether Airflow may be asked about a batch now."""
        is_queued = state.triggered and state.started is None
        pause = self._interval * (_QUEUED if is_queued else 1)
        is_new = state.triggered and abs(time.time() - state.record.created_at) < self._interval
        if is_new or not self._is_due(state.record.id, pause) or not self._free.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._free.release()

    def _is_due(self, batch_id: str, pause: float) -> bool:
        now = time.monotonic()
        with self._lock:
            if now < self._asked.get(batch_id, now):
                return False
            self._asked[batch_id] = now + pause
            self._asked.move_to_end(batch_id)
            if len(self._asked) > _MOST_LOOKS:
                self._asked.popitem(last=False)
        return True


def cancelled(store: BatchStore, state: BatchState, runs: AirflowRuns, upkeep: Upkeep) -> BatchState:
    """The batch after its cancellation: ``cancelled`` if its task had not begun, else ``cancelling``.

    The job sees the decision within seconds, and publishes what is finished.

    :raises OpenAiError: 400, it has ended another way, or is about to. Official clients repeat 409 by
        themselves, which would not help.
    """
    if state.outcome is None and not state.is_over:
        decided(store, state.record.id, "cancelled")
        state = _again(store, state)
    if state.status not in {"cancelling", "cancelled"}:
        raise OpenAiError(
            400,
            f"Batch {state.record.id!r} is {state.status}, so it can't be cancelled.",
            code="batch_not_cancellable",
        )
    return upkeep.looked_after(store, state, runs)


def _without_manifest(store: BatchStore, state: BatchState) -> BatchState:
    """Fail a batch whose run is over and whose job has published nothing, unless the job may still do so."""
    record, outcome = state.record, state.outcome
    if outcome is not None and outcome.decision != "failed" and time.time() - outcome.at < PUBLISHING:
        return state
    error = BatchError(
        code="dag_run_over",
        message=f"DAG run {record.id} of {record.dag_id} is over without a result; see its log in Airflow.",
    )
    if outcome is None and decided(store, record.id, "failed", (error,)).decision != "failed":
        return _again(store, state)  # decided by the job, which publishes now
    end_without_job(store, _again(store, state), "failed", [error])
    return _again(store, state)


def _is_alive(state: BatchState) -> bool:
    return state.progress is not None and abs(time.time() - state.progress.at) < _ALIVE


def _again(store: BatchStore, state: BatchState) -> BatchState:
    return store.state(state.record.id) or state
