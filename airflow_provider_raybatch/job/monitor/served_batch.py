# SPDX-License-Identifier: Apache-2.0
"""What a job knows of the batch of the Batch API that it answers: whether it is over, and how far it is.

The batch ends by one document, which the API server, the driver or the task creates, whoever is first. A
thread looks for it, creates it when the window has passed, and writes the progress that clients see.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchError,
    BatchOutcome,
    BatchProgress,
    Decision,
    RequestCounts,
    ServedBatch,
)
from airflow_provider_raybatch.contract.base import parse, parse_file
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.contract.layout import OUTCOME, PROGRESS
from airflow_provider_raybatch.contract.run_numbers import EarlyEnd
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.errors import TakenError
from airflow_provider_raybatch.storage.folder import Folder, folder

INTERVAL = 2.0
"""Seconds between two looks. Each costs a bucket one request."""
_PROGRESS_EVERY = 5.0
_LAST_WRITE = 5.0
"""Seconds that the last progress may take of the job's end."""
_NOT_OURS = frozenset({FailureClass.SUPERSEDED, FailureClass.CANCELLED, FailureClass.TIMEOUT})
"""Failures after which this job may or can publish nothing: another one does."""

logger = logging.getLogger(__name__)


class BatchEndedError(RaybatchError):
    """The batch has ended early: no row is asked any more, and what is finished is published."""

    failure_class = FailureClass.CANCELLED


class BatchWatch:
    """Watches one batch. That of a job that answers none does nothing, and asks the storage nothing.

    :param credentials: of the destination, which lies in the folder of the batch.
    :param clock: epoch seconds; the window ends by it.
    """

    def __init__(
        self,
        served: ServedBatch | None = None,
        credentials: AwsCredentials | None = None,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder: Folder | None = None if served is None else folder(served.folder, credentials)
        self._expires_at = 0.0 if served is None else served.expires_at
        self._interval = interval
        self._clock = clock
        self._outcome: BatchOutcome | None = None
        self._counts: RequestCounts | None = None
        self._written: RequestCounts | None = None
        self._complaints: set[str] = set()
        self._ended = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look now; then, in a separate thread, every few seconds: a slow store must not delay the job."""
        if self._folder is None:
            yield
            return
        self._look()
        thread = threading.Thread(target=self._run, name="raybatch-served-batch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_LAST_WRITE)

    @property
    def decision(self) -> Decision | None:
        """How the batch ends; ``None`` while that is open, as far as is known."""
        return None if self._outcome is None else self._outcome.decision

    @property
    def ending(self) -> EarlyEnd | None:
        """How it ends if its rows without an answer get none any more."""
        decision = self.decision
        return None if decision == "completed" or decision == "failed" else decision

    @property
    def errors(self) -> list[BatchError]:
        """Why, where it reached a limit or failed."""
        return [] if self._outcome is None else self._outcome.errors

    @property
    def asks_no_more(self) -> bool:
        """Whether all that is left is to publish what is finished."""
        return self.decision == "completed" or self.ending is not None

    def check(self) -> None:
        """See whether rows may still be asked.

        :raises BatchEndedError: the batch is over.
        :raises RaybatchError: it has failed, so that no result of it counts.
        """
        if self.decision == "failed":
            uri = "" if self._folder is None else f"{self._folder.uri} "
            raise RaybatchError(
                f"served_batch: the batch {uri}has failed already, so no row of it is asked any more; create "
                "it again.",
                FailureClass.CANCELLED,
            )
        if self.ending is not None:
            raise BatchEndedError(f"served_batch: the batch is {self.decision}.")

    def is_ended_by(self, error: Exception, is_answered: Callable[[], bool] = lambda: False) -> bool:
        """Whether what is finished is to be published although the job has failed with `error`.

        A job that has used up a limit decides that here: a retry would have no more to spend.

        :param is_answered: whether each row has an answer, so that the limit costs the batch nothing.
        :raises StorageError: the storage takes no decision.
        """
        if isinstance(error, BatchEndedError):
            return True
        if isinstance(error, RaybatchError) and error.failure_class in _NOT_OURS:
            return False
        self._look()
        if self._folder is not None and self._outcome is None and _is_limit(error):
            reached, _, _ = str(error).partition("; ")  # what follows is a remedy of other jobs
            said = f"{reached}; lines without an answer, if any, are in the error file, for another batch."
            if is_answered():
                self._decide(self._folder, "completed")
            else:
                self._decide(self._folder, "limit_reached", [BatchError(code="limit_reached", message=said)])
        return self.asks_no_more if _is_limit(error) else self.ending is not None

    def complete(self) -> None:
        """Each row has an answer, and the commit begins: from now on the batch can't be cancelled.

        If it has ended early already, nothing is lost by that.

        :raises StorageError: the storage does not answer.
        :raises RaybatchError: the batch has failed.
        """
        if self._folder is not None and self._outcome is None:
            self._decide(self._folder, "completed")
        if self.decision == "failed":
            self.check()

    def observe(self, total: int, completed: int, failed: int) -> None:
        """Take how many rows have an answer in parts; the thread writes that."""
        found = RequestCounts(total=total, completed=completed, failed=failed)
        self._counts = _most(found, self._counts or RequestCounts())

    def _run(self) -> None:
        written_at = float("-inf")
        while True:
            now = time.monotonic()
            if now - written_at >= _PROGRESS_EVERY:
                written_at = now
                self._write()
            if self._ended.wait(self._interval):
                break
            self._look()
        self._write()

    def _look(self) -> None:
        if self._folder is None or self._outcome is not None:
            return
        try:
            if self._folder.head(OUTCOME) is not None:
                self._outcome = self._read(self._folder)
            elif self._clock() >= self._expires_at:
                self._decide(self._folder, "expired")
        except Exception as error:  # the next look, or none, says as much
            self._complain("whether the batch is over", error)

    def _decide(self, place: Folder, decision: Decision, errors: Sequence[BatchError] = ()) -> None:
        """Decide how the batch ends, unless that is decided."""
        nonce = secrets.token_hex(8)
        outcome = BatchOutcome(decision=decision, at=self._clock(), nonce=nonce, errors=list(errors))
        try:
            place.create(OUTCOME, outcome.model_dump_json().encode())
        except TakenError:
            outcome = self._read(place)
        self._outcome = outcome

    @staticmethod
    def _read(place: Folder) -> BatchOutcome:
        what, remedy = "the outcome of a batch", "create the batch again"
        return parse_file(BatchOutcome, place.read(OUTCOME), f"{place.uri}/{OUTCOME}", what, remedy)

    def _write(self) -> None:
        counts = self._counts
        if self._folder is None or counts is None or counts == self._written:
            return
        try:
            # A driver that was frozen, or knows fewer parts, must not take back what clients have seen.
            shown = _most(counts, self._shown(self._folder))
            progress = BatchProgress(at=self._clock(), counts=shown)
            self._folder.write(PROGRESS, progress.model_dump_json().encode())
            self._written = counts
        except Exception as error:  # the dataset matters more
            self._complain("how far the batch is", error)

    @staticmethod
    def _shown(place: Folder) -> RequestCounts:
        if place.head(PROGRESS) is None:
            return RequestCounts()
        try:
            return parse(BatchProgress, place.read(PROGRESS)).counts
        except SpecError:
            return RequestCounts()  # half a file of a mounted bucket; it is written anew

    def _complain(self, what: str, error: Exception) -> None:
        if what not in self._complaints:
            self._complaints.add(what)
            logger.warning("served_batch: the storage does not tell or take %s: %s", what, error)


def _is_limit(error: Exception) -> bool:
    return isinstance(error, RaybatchError) and error.failure_class is FailureClass.LIMIT_REACHED


def _most(counts: RequestCounts, shown: RequestCounts) -> RequestCounts:
    """`counts`, but none less than `shown`."""
    completed = max(counts.completed, shown.completed)
    failed = min(max(counts.failed, shown.failed), max(0, counts.total - completed))
    return RequestCounts(total=counts.total, completed=completed, failed=failed)
