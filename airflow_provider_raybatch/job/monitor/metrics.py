# SPDX-License-Identifier: Apache-2.0
"""A replica's rows and tokens in Ray's own metrics, for its dashboard, Prometheus and Grafana."""

from __future__ import annotations

import logging
import threading

from airflow_provider_raybatch.contract.base import ascii_name
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

_COUNTERS = {
    "written": ("raybatch_rows_total", "Rows that are written, failed ones included."),
    "errors": ("raybatch_failed_rows_total", "Rows that are written as failed."),
    "input_tokens": ("raybatch_input_tokens_total", "Prompt tokens of answered requests."),
    "output_tokens": ("raybatch_output_tokens_total", "Generated tokens of answered requests."),
}
"""Name and description, by the field of the report that is counted."""
_IN_FLIGHT = ("raybatch_rows_in_flight", "Rows in the engine.")

logger = logging.getLogger(__name__)


class Metrics:
    """Counts what a replica reports. Never raises: a job doesn't fail because of its metrics.

    :param submission: for the tags of DAG, task and job; ``None`` leaves these empty.
    :param replica: name of its process, since each process counts from 0.
    """

    def __init__(self, submission: Submission | None, replica: str) -> None:
        self._lock = threading.Lock()
        self._counted = dict.fromkeys(_COUNTERS, 0)
        self.is_on = True
        """False once Ray refused something."""
        tags = {
            "dag_id": ascii_name(submission.task.dag_id) if submission else "",
            "task_id": ascii_name(submission.task.task_id) if submission else "",
            "submission_id": submission.submission_id if submission else "",
            "replica": replica,
        }
        try:
            from ray.util.metrics import Counter, Gauge

            keys = tuple(tags)
            self._counters = {
                field: Counter(name, text, keys).set_default_tags(tags)
                for field, (name, text) in _COUNTERS.items()
            }
            self._in_flight = Gauge(*_IN_FLIGHT, keys).set_default_tags(tags)
        except Exception as error:  # only shown to users
            self._give_up(error)

    def update(self, report: ReplicaProgress, rows_in_flight: int) -> None:
        """Count what has grown since the last time.

        :param rows_in_flight: rows in the engine now.
        """
        with self._lock:
            if not self.is_on:
                return
            try:
                self._in_flight.set(rows_in_flight)
                for field, counter in self._counters.items():
                    value = getattr(report, field)
                    if value > self._counted[field]:
                        counter.inc(value - self._counted[field])
                        self._counted[field] = value
            except Exception as error:  # the thread that calls this also sends the reports
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.is_on = False
        logger.warning("Ray takes no metrics of rows and tokens (%r); the job goes on.", error)
