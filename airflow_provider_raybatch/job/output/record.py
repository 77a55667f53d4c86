# SPDX-License-Identifier: Apache-2.0
"""``record.json``: what a driver notes of itself while it runs, so that a killed one is known afterwards.

A note is written by a thread of its own: a slow or failing store costs nothing but the note. The course of
the job, its rates and rows in flight over time, is kept in few points.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.base import parse_file
from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError, without_examples
from airflow_provider_raybatch.contract.layout import RECORD
from airflow_provider_raybatch.contract.run_numbers import JobRecord, Moment
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import Folder, ReadableFolder

if TYPE_CHECKING:
    from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
    from airflow_provider_raybatch.job.monitor.start_up import StartUp

MOST_POINTS = 300
_STEP = 1.0
"""Seconds of a point at first; twice as many each time the points become too many."""
_LEAST = 0.1
"""Seconds over which a rate is measured at least."""


@dataclass
class _Point:
    """What was seen within one step; `tokens` count from the job's start.

    :param looks: how many `rows_in_flight` were added up.
    """

    seconds: float
    rows: int
    tokens: int
    rows_in_flight: int
    replicas: int
    looks: int = 1

    def followed_by(self, later: _Point) -> _Point:
        in_flight, looks = self.rows_in_flight + later.rows_in_flight, self.looks + later.looks
        return _Point(later.seconds, later.rows, later.tokens, in_flight, later.replicas, looks)


class Series:
    """Collects readings. Neighbours are merged as the job grows long, so the memory is bounded.

    :param began: epoch seconds of the job's start.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._step = _STEP
        self._points: dict[int, _Point] = {}
        self._first = 0.0

    def add(self, reports: Sequence[ReplicaProgress], done: int, now: float) -> None:
        """Take a reading; those before the first request are left out.

        :param done: rows of the input that are done.
        """
        if not self._points and not any(one.first_request or one.rows for one in reports):
            return
        if not self._points:
            firsts = [one.first_request for one in reports if one.first_request]
            self._first = max(0.0, min(firsts, default=now) - self._began)
        ready = [one for one in reports if one.state == "ready"]
        tokens = sum(one.input_tokens + one.output_tokens for one in reports)
        tokens += sum(one.tokens_in_flight for one in ready)
        in_flight = sum(one.rows_in_flight for one in ready)
        seconds = max(0.0, now - self._began)
        self._put(int(seconds / self._step), _Point(seconds, done, tokens, in_flight, len(ready)))
        if len(self._points) > MOST_POINTS:
            self._step *= 2
            points, self._points = self._points, {}
            for place, point in points.items():
                self._put(place // 2, point)

    def _put(self, place: int, point: _Point) -> None:
        before = self._points.get(place)
        self._points[place] = point if before is None else before.followed_by(point)

    @property
    def moments(self) -> list[Moment]:
        """The points so far, oldest first."""
        made: list[Moment] = []
        seconds, tokens = self._first, 0
        for point in self._points.values():
            passed, new = point.seconds - seconds, point.tokens - tokens
            # What a process that died had not written is counted again when another one does it.
            rate = max(0.0, new / passed) if passed >= _LEAST else 0.0
            seconds, tokens = point.seconds, point.tokens
            made.append(
                Moment(
                    seconds=round(seconds, 1),
                    rows=point.rows,
                    tokens_per_second=round(rate, 1),
                    rows_in_flight=round(point.rows_in_flight / point.looks),
                    replicas=point.replicas,
                )
            )
        return made


INTERVAL = 30.0
"""Seconds between two notes."""
LAST_WRITE = 5.0
"""Seconds that the last note may take of the job's end, which then goes on without."""

logger = logging.getLogger(__name__)


def new_record(
    spec: BatchInferenceSpec, submission: Submission, began: float, total: int | None = None
) -> JobRecord:
    """What is known of a job at its start.

    :param total: rows of the input.
    """
    prices = spec.gpu_hour_price or {}
    return JobRecord(
        run_token=submission.run_token,
        submission_id=submission.submission_id,
        began=began,
        at=began,
        total=total,
        content=spec.shows_rows,
        gpu_hour_price=prices,
        currency=spec.currency if prices else None,
    )


class Recorder:
    """Keeps one driver's record. Before :meth:`begin` it notes nothing."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._reports: Sequence[ReplicaProgress] = ()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def begin(self, folder: Folder, part_folder: str, record: JobRecord, start_up: StartUp) -> None:
        """Write the first note, and go on.

        :param part_folder: the driver's own folder, relative to `folder`.
        :param record: see :func:`new_record`.
        :param start_up: of the job.
        """
        self._folder, self._path = folder, f"{part_folder}/{RECORD}"
        self._start_up, self._series = start_up, Series(start_up.began)
        self._seen = record
        self._thread = threading.Thread(target=self._run, name="raybatch-record", daemon=True)
        self._thread.start()

    def observe(
        self, reports: Sequence[ReplicaProgress], progress: Progress, gpu_seconds_by_type: Mapping[str, float]
    ) -> None:
        """Take a reading; it writes nothing itself.

        :param gpu_seconds_by_type: that replicas have held so far.
        """
        if self._thread is None:
            return
        with self._lock:
            self._reports = reports
            with suppress(Exception):  # a gap in a plot ends no job
                self._series.add(reports, progress.done, time.time())
        self._note(done=progress.done, errors=progress.errors)
        self.generated(reports)
        self.spent(gpu_seconds_by_type)

    def generated(self, reports: Sequence[ReplicaProgress]) -> None:
        """Note the tokens of replicas at their end."""
        self._note(
            input_tokens=sum(one.input_tokens for one in reports),
            output_tokens=sum(one.output_tokens for one in reports),
        )

    def spent(self, gpu_seconds_by_type: Mapping[str, float]) -> None:
        """Note what replicas have held until their end."""
        self._note(gpu_seconds_by_type=dict(gpu_seconds_by_type))

    def _note(self, **known: Any) -> None:
        if self._thread is not None:
            with self._lock:
                self._seen = self._seen.model_copy(update=known)

    @property
    def reports(self) -> Sequence[ReplicaProgress]:
        """The latest ones of the job's replicas."""
        with self._lock:
            return self._reports

    @property
    def record(self) -> JobRecord | None:
        """What is known now; ``None`` before :meth:`begin`."""
        if self._thread is None:
            return None
        with self._lock:
            known: dict[str, Any] = {"at": time.time(), "phases": self._start_up.phases(self._reports)}
            with suppress(Exception):  # the rest says as much
                known["course"] = self._series.moments
            return self._seen.model_copy(update=known)

    def end(self, failure: str | None = None, failure_class: FailureClass | None = None) -> None:
        """Write the last note.

        :param failure: why the job failed.
        """
        if self._thread is None or self._over.is_set():
            return
        with self._lock:
            if failure is not None and not self._seen.content:
                failure = without_examples(failure)
            self._seen = self._seen.model_copy(update={"failure": failure, "failure_class": failure_class})
        self._over.set()
        self._thread.join(LAST_WRITE)

    def _run(self) -> None:
        self._write()
        while not self._over.wait(self._interval):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            if (record := self.record) is not None:
                self._folder.write(self._path, record.model_dump_json(exclude_defaults=True).encode())
        except Exception as error:  # the next note, or none, says as much
            logger.debug("%s is not written this time: %s", self._path, error)


def records_of(folder: ReadableFolder, task_folder: str, without: str = "") -> list[JobRecord]:
    """The records of all jobs of a task that claimed its destination, oldest first.

    Broken and foreign ones are left out.

    :param task_folder: of the task, see :func:`~airflow_provider_raybatch.contract.layout.task_folder`.
    :param without: folder of a driver whose record is left out.
    :raises StorageError: the folder can't be listed.
    """
    found = listed_records(folder, folder.list(task_folder))
    return [record for path, record in found if path != f"{without}/{RECORD}"]


def listed_records(folder: ReadableFolder, files: Sequence[Entry]) -> list[tuple[str, JobRecord]]:
    """The records among `files`, each with its path, oldest first."""

    def read(path: str) -> JobRecord | None:
        try:
            return parse_file(JobRecord, folder.read(path), path, "a record of a job", "remove it")
        except (SpecError, StorageError):
            return None

    paths = [file.path for file in files if file.path.endswith(f"/{RECORD}")]
    found = zip(paths, in_order(read, paths), strict=True)
    return sorted(((path, one) for path, one in found if one is not None), key=lambda pair: pair[1].began)
