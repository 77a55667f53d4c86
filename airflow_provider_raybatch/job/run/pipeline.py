# SPDX-License-Identifier: Apache-2.0
"""A Ray Data pipeline that runs beside the driver's own thread, and what Ray's dashboard shows of it.

Ray Data counts what passes through its operators, which are tickets or batches here. So its executor is made
to report the rows of the dataset instead. It has no interface for that; nothing but the page depends on it.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import ray.data

from airflow_provider_raybatch.contract.base import ascii_name
from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission

_LONGEST_DAG, _LONGEST_TASK = 80, 60
_ENDS = ("FINISHED", "FAILED")

logger = logging.getLogger(__name__)

Class = TypeVar("Class", bound=type)


def name_of(submission: Submission | None) -> str:
    """``<dag>.<task>``, and the index of a mapped task, of ASCII letters, digits and ``_.-``.

    Ray names log files after it, and file systems take names of 255 bytes; its metrics have it as a tag.
    """
    if submission is None:
        return "batch_inference"
    task = submission.task
    name = f"{_plain(task.dag_id)[:_LONGEST_DAG]}.{_plain(task.task_id)[:_LONGEST_TASK]}"
    return name if task.map_index < 0 else f"{name}.{task.map_index}"


def of_task(one: Class, submission: Submission | None) -> Class:
    """The class as ``Class(<dag>:<task>)``, by which Ray shows its actors and Ray Data its operators.

    Ray takes what follows the last dot of a class's name for the whole.
    """
    name = name_of(submission).replace(".", ":")
    renamed: Any = type(f"{one.__name__}({name})", (one,), {"__doc__": one.__doc__})
    return renamed  # type: ignore[no-any-return]


class DatasetPage:
    """The rows of a job on Ray Data's page. Never raises: a job doesn't fail because of a page.

    :param name: of the Dataset, which its executor has in this process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: Any = None
        """Weak, since an executor's actors hold GPUs until Python collects it."""
        self._rows = self._reported = (0, 0)
        self._state = ""
        self.is_on = True
        """False once Ray's executor was not as expected."""

    def show(self, done: int, total: int) -> None:
        """Let Ray's next report have these rows; after its last one, report once more."""
        self._rows = done, total
        if not self.is_on:
            return
        try:
            if self._executor is None:
                self._find()
            executor = None if self._executor is None else self._executor()
            if executor is not None and self._state in _ENDS and self._reported != self._rows:
                executor._update_stats_metrics(state=self._state, force_update=True)
        except Exception as error:
            self._give_up(error)

    def _find(self) -> None:
        for thread in threading.enumerate():
            name = str(getattr(thread, "_dataset_id", ""))
            if type(thread).__name__ == "StreamingExecutor" and name.startswith(f"{self._name}_"):
                self._take_over(thread)

    def _take_over(self, executor: Any) -> None:
        rays_own, found = type(executor)._get_state_dict, weakref.ref(executor)
        executor._get_state_dict = lambda *given, **by_name: self._counted(
            found(), rays_own(found(), *given, **by_name)
        )
        self._executor = found

    def _counted(self, executor: Any, reported: Any) -> Any:
        """What the executor reports, with rows for the Dataset and for its last operator."""
        if not self.is_on:
            return reported
        try:
            done, total = self._rows
            rows = {"progress": done, "total": total, "total_rows": total}
            operator = list(reported["operators"])[-1]
            operators = {**reported["operators"], operator: {**reported["operators"][operator], **rows}}
            tickets, *_, last = executor._topology
            # Ray adds the operators of a Dataset up.
            tickets.metrics.row_outputs_taken, last.metrics.row_outputs_taken = 0, done
            self._reported, self._state = (done, total), reported["state"]
            return {**reported, **rows, "operators": operators}
        except Exception as error:
            self._give_up(error)
            return reported

    def _give_up(self, error: Exception) -> None:
        self.is_on = False
        logger.info("Ray Data's page shows no rows of this job (%r).", error)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", ascii_name(name))


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
