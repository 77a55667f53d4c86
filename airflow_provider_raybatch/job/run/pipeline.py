# SPDX-License-Identifier: Apache-2.0
"""A Ray Data pipeline that runs beside the driver's own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import ray.data

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.run.dashboard import DatasetPage, name_of


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
        # It warns that its bars are off, which is our doing.
        logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Ray's own guard sees chunks only, `no_progress_timeout` also tokens in flight and engines that load.
        if hasattr(context, "execution_no_progress_timeout_s"):
            context.execution_no_progress_timeout_s = -1
        self._stages = make()
        name = name_of(spec.submission)
        self._stages.set_name(name)
        self._page = DatasetPage(name)
        self.start()

    def show(self, progress: Progress) -> None:
        """Show the job's rows on Ray's dashboard."""
        self._page.show(progress.done, progress.total)

    def run(self) -> None:
        """Consume all rows."""
        try:
            for row in self._stages.iter_rows():
                self._take(row)
        except BaseException as error:  # the main thread diagnoses it
            self.error = error
