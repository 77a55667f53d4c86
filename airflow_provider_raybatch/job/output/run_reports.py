# SPDX-License-Identifier: Apache-2.0
"""The reports of jobs that publish nothing, beside the task's parts.

That of a killed job is written when the next one starts, that of a failed one at its own end. Each has a
thread of its own, and little time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.layout import REPORT_DATA, REPORT_PAGE, task_place
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission, TaskKey
from airflow_provider_raybatch.job.failures.diagnosis import said
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.record import listed_records
from airflow_provider_raybatch.job.output.report import write
from airflow_provider_raybatch.job.output.unfinished import Known, report_of_run
from airflow_provider_raybatch.storage.folder import Folder

_LONGEST = {FailureClass.CANCELLED: 2.0, FailureClass.TIMEOUT: 5.0}
_LOOK = 5.0
"""Seconds that a commit waits for what was looked up at the job's start, or is being written of it."""
_USUALLY = 20.0
"""Seconds that a report may take of a failed job's end. What stops a job waits for few."""

logger = logging.getLogger(__name__)


class RunReports:
    """Writes them. Never raises."""

    def __init__(self) -> None:
        self._attempts = 1
        self._earlier: threading.Thread | None = None
        self._counted, self._over = threading.Event(), threading.Event()
        self._writing = threading.Lock()

    def begin(
        self, folder: Folder, spec: BatchInferenceSpec, submission: Submission, part_folder: str
    ) -> None:
        """Report a job of this run that was killed; call it after the claim."""

        def look() -> None:
            place = task_place(submission.task)
            records = listed_records(folder, folder.list(place))
            earlier = [
                one
                for path, one in records
                if one.run_token == submission.run_token and not path.startswith(f"{part_folder}/")
            ]
            self._attempts = 1 + len(earlier)
            self._counted.set()
            if earlier and earlier[-1].failure is None:
                known = Known(spec)
                report = report_of_run(folder, submission.task, part_folder=part_folder, known=known)
                with self._writing:
                    if report is not None and not self._over.is_set():
                        write(folder, place, report)

        self._earlier = _started(look, spec.shows_rows, self._counted.set)

    def attempts(self) -> int:
        """Jobs of the run that are known, this one included."""
        if self._earlier is not None:
            self._counted.wait(_LOOK)
        return self._attempts

    def failed(
        self,
        folder: Folder,
        task: TaskKey,
        record: JobRecord,
        known: Known,
        check: Callable[[], None],
        part_folder: str | None = None,
    ) -> None:
        """Report this job, which fails.

        :param record: its last one.
        :param check: raises where a newer job has claimed the destination: what happened is its report then.
        :param part_folder: ``None`` for a job that was refused before it claimed the destination.
        """

        def report() -> None:
            if self._earlier is not None:
                self._earlier.join()
            made = report_of_run(folder, task, part_folder=part_folder, own=record, known=known)
            if made is not None:
                check()
                write(folder, task_place(task), made)

        kind = record.failure_class or FailureClass.INTERNAL
        _started(report, known.spec.shows_rows).join(_LONGEST.get(kind, _USUALLY))

    def committed(self, journal: Journal) -> None:
        """Delete the report of earlier attempts, and write none any more, since the run has a dataset now."""
        folder, place = journal.folder, task_place(journal.submission.task)
        self._over.set()
        try:
            if self._writing.acquire(timeout=_LOOK):
                self._writing.release()
            journal.check()  # the report of a newer run stays
            folder.delete([f"{place}/{REPORT_PAGE}", f"{place}/{REPORT_DATA}"])
        except Exception as error:  # the dataset is published
            logger.warning("%s/%s/%s is not deleted: %s", folder.uri, place, REPORT_DATA, error)


def _started(
    function: Callable[[], None], shows_rows: bool, finally_: Callable[[], None] = lambda: None
) -> threading.Thread:
    def run() -> None:
        try:
            function()
        except Exception as error:  # the job matters more
            text = "the report of a job without a dataset is not written whole: %s"
            logger.warning(text, said(error, shows_rows))
        finally:
            finally_()

    thread = threading.Thread(target=run, name="raybatch-report", daemon=True)
    thread.start()
    return thread
