# SPDX-License-Identifier: Apache-2.0
"""A Ray Data pipeline that runs beside the driver's own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray.data

from airflow_provider_raybatch.contract.names import ascii_name
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

_LONGEST_NAME = 150


class Pipeline(threading.Thread):
    """Starts at once.

    :param make: makes the Dataset, after Ray Data's settings.
    :param take: called with each of its rows.
    :ivar error: what has ended it before its last row.
    """

    def __init__(
        self, make: Callable[[], ray.data.Dataset], spec: BatchInferenceSpec, take: Callable[[Any], None]
    ) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._take = take
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Ray's own guard sees chunks only, `no_progress_timeout` also tokens in flight and engines that load.
        if hasattr(context, "execution_no_progress_timeout_s"):
            context.execution_no_progress_timeout_s = -1
        self._stages = make()
        self._stages.set_name(_name(spec))  # for Ray's dashboard
        self.start()

    def run(self) -> None:
        """Consume all rows."""
        try:
            for row in self._stages.iter_rows():
                self._take(row)
        except BaseException as error:  # the main thread diagnoses it
            self.error = error


def _name(spec: BatchInferenceSpec) -> str:
    if spec.submission is None:
        return "batch_inference"
    # Ray names a log file after it, and file systems take names of 255 bytes. Ray's metrics have it as a tag.
    return ascii_name(f"{spec.submission.task.dag_id}.{spec.submission.task.task_id}")[:_LONGEST_NAME]
