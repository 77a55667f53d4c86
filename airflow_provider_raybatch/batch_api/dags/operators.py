# SPDX-License-Identifier: Apache-2.0
"""Operators of the Batch API: one answers a batch, another one deletes what has expired.

An attempt that fails before its job runs waits for a cluster that no other batch would get either. Where jobs
run and fail one after the other without one more answer, the batch or its model is the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import NEVER_EXPIRE, BaseOperator  # type: ignore[attr-defined] # the stub lacks the first
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from airflow_provider_raybatch.argument_fields import over_default
from airflow_provider_raybatch.batch_api.store.records import BatchState
from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.base import ContractModel, parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.exceptions import RayBatchFailException, for_airflow
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.run_record import AttemptLike, Store

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.batch_api.dags.running import RunningBatch
    from airflow_provider_raybatch.batch_api.store.records import BatchEnd
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch

MOST_FAILURES = 5
"""Attempts in a row whose jobs run and answer no further request."""
LEAST_SECONDS = 600.0
"""From the first of them to the last: nodes that are lost one after the other need some minutes to settle."""
_KEY = "raybatch_consecutive_failures"
_SAYS_NOTHING = frozenset({
    FailureClass.CLUSTER_UNREACHABLE, FailureClass.STORAGE, FailureClass.CANCELLED, FailureClass.TIMEOUT,
})  # fmt: skip
"""Failures that say nothing about the batch."""
_BY_ENGINE = frozenset({FailureClass.ENGINE_DEAD, FailureClass.OUT_OF_MEMORY})
"""Failures of jobs that had begun, also where they died before they wrote how far they were."""


class ConsecutiveFailures(ContractModel):
    """Attempts since the last answer; kept in Airflow's task state store.

    :param max_tries: the task instance's, which a clear raises: then they are counted anew.
    :param answered: requests with an answer or an error, after the last attempt.
    :param written: when a job wrote that; each writes it when it begins to ask.
    :param since: when the first of them failed.
    """

    max_tries: int
    count: int = 0
    answered: int = 0
    written: float = 0.0
    since: float = 0.0

    @property
    def are_enough(self) -> bool:
        """Whether no other attempt makes sense."""
        return self.count >= MOST_FAILURES and time.time() - self.since >= LEAST_SECONDS

    def after(self, state: BatchState, failure_class: FailureClass) -> ConsecutiveFailures:
        """With an attempt that has failed just now.

        :param state: of the batch after it.
        """
        counts, written = state.counts, 0.0 if state.progress is None else state.progress.at
        answered = counts.completed + counts.failed
        has_run = written != self.written or failure_class in _BY_ENGINE
        count, since = self.count, self.since
        if answered > self.answered:
            count = 0
        elif has_run and failure_class not in _SAYS_NOTHING:
            count, since = count + 1, since if count else time.time()
        return ConsecutiveFailures(
            max_tries=self.max_tries, count=count, answered=answered, written=written, since=since
        )


def count_failure(
    store: Store, attempt: AttemptLike, state: BatchState, failure_class: FailureClass
) -> ConsecutiveFailures:
    """Note that an attempt has failed; see :meth:`ConsecutiveFailures.after`. Raises what `store` raises."""
    known = ConsecutiveFailures(max_tries=attempt.max_tries)
    try:
        found = parse(ConsecutiveFailures, store.get(_KEY) or {})
    except SpecError:
        found = known  # there is none, or someone has changed it
    noted = (found if found.max_tries == known.max_tries else known).after(state, failure_class)
    store.set(_KEY, noted.model_dump(mode="json"), retention=NEVER_EXPIRE)
    return noted


LATE = 24 * 3600.0
"""Seconds after the end of its window in which a batch's finished rows are still published by a retry."""


class ServedBatchOperator(RayBatchInferenceOperator):
    """Answers the batch that ``{"batch_id": ...}``, the configuration of its DAG run, names.

    It is the task of a DAG of :func:`~airflow_provider_raybatch.batch_api.dags.served_dag.serve_batches`.
    Owner, input and window stand in the batch's signed record, so no configuration makes it read or write
    anything else. A task whose batch has ended does nothing.

    The task fails where the system fails: batches of invalid files fail, and their tasks succeed. Attempts go
    on after the window of a batch, for a day, to publish what is finished. They end before where jobs run
    and answer nothing more, see :mod:`~airflow_provider_raybatch.batch_api.dags.operators`.

    :param served_model_name: the model's name in records and lines of batches.
    :param max_requests: of a batch, by default any number.
    :param max_file_bytes: of a batch's input, by default any number.
    :param max_line_bytes: of a line, by default 16 MiB and at most 128 MiB. The check of a line may take 30
        times as much memory on the worker.
    :param kwargs: as of :class:`~airflow_provider_raybatch.operators.ray_batch.RayBatchInferenceOperator`,
        without the input and the output.
    :raises SpecError: an argument can't be used.
    """

    overwrite_rtif_after_execution: bool = True

    def __init__(
        self,
        *,
        served_model_name: str,
        max_requests: int | None = None,
        max_file_bytes: int | None = None,
        max_line_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._batch: RunningBatch | None = None
        lines = {"destination_format": OPENAI_BATCH, "report_samples": 0}
        named = {"served_model_name": served_model_name}
        output = over_default("output_options", kwargs.pop("output_options", None), lines)
        advanced = over_default("advanced", kwargs.pop("advanced", None), named)
        super().__init__(
            source=SET_DURING_EXECUTION,  # type: ignore[arg-type]
            destination=SET_DURING_EXECUTION,  # type: ignore[arg-type]
            format="openai_batch",
            output_options=output,
            advanced=advanced,
            **kwargs,
        )
        self.served_model_name = served_model_name
        self.max_requests = max_requests
        self.max_file_bytes = max_file_bytes
        self.max_line_bytes = max_line_bytes

    def execute(self, context: Context) -> Any:
        """Check and start the batch, unless it has ended, and answer it as the usual operator does.

        :raises RayBatchException: see :meth:`RayOperator.execute`; or this run may not answer the batch.
        """
        with self._leaving_no_job(context), for_airflow():
            batch = self._taken(context)
            end = batch.end_before_job()
        if end is not None:
            return self._ended(batch, end)
        return self._to_its_end(context, batch, lambda: super(ServedBatchOperator, self).execute(context))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As the operator's, with the arguments that are set during execution."""
        self._is_resumed = True
        with self._leaving_no_job(context), for_airflow():
            batch = self._taken(context)
        resume = super().resume_execution
        return self._to_its_end(context, batch, lambda: resume(next_method, next_kwargs, context))

    def _given_later(self, given: Mapping[str, Any]) -> set[str]:
        return {"source", "destination"}

    @property
    def _served(self) -> ServedBatch | None:
        return None if self._batch is None else self._batch.served

    def _taken(self, context: Context) -> RunningBatch:
        """The batch of the run; its locations become the task's arguments."""
        from airflow_provider_raybatch.batch_api.dags.running import running_batch
        from airflow_provider_raybatch.batch_api.store.validation import LONGEST_SERVED_LINE, FileLimits

        run, line = context["dag_run"], self.max_line_bytes or LONGEST_SERVED_LINE
        limits = FileLimits(self.max_requests, self.max_file_bytes, max_line_bytes=line)
        names = {"run_id": run.run_id, "dag_id": context["ti"].dag_id, "model": self.served_model_name}
        self._batch = batch = running_batch(run.conf, limits, **names)
        for argument, value in batch.locations.items():
            setattr(self, argument, value)
        if self.aws_conn_id is None:
            self.aws_conn_id = batch.aws_conn_id
        return batch

    def _to_its_end(self, context: Context, batch: RunningBatch, answer: Callable[[], Any]) -> Any:
        """What the task returns for a batch whose job is run by `answer`."""
        try:
            result = answer()
        except Exception as error:
            return self._without_result(context, batch, error)
        with for_airflow():
            end = batch.end(result.get("manifest_uri"))
        return {**result, **self._ended(batch, end)}

    def next_attempt(self, context: Context, error: RaybatchError) -> str:
        """Nothing: whether an attempt follows depends on the batch."""
        return ""

    def _without_result(self, context: Context, batch: RunningBatch, error: Exception) -> Any:
        """End a batch that gets no other job, and raise what Airflow is to know.

        Where the batch is over otherwise, nothing depends on its job, so the task returns.
        """
        with for_airflow():
            end = batch.end_if_over()
        if end is not None:
            self.log.warning("The batch is over, so it does not matter that its job failed: %s", error)
            return self._ended(batch, end)
        why = self._gives_up(context, batch, error)
        if not why and not self._attempt(context).ends_with(error, self.retry_policy):
            raise error
        with for_airflow():
            batch.end_without_result(why)
        if not why or isinstance(error, RayBatchFailException):
            raise error
        self._release(context, {}, ended=False)  # a retry was expected when the job failed
        raise RayBatchFailException(f"{error} No attempt follows, since {why}.", _class_of(error)) from error

    def _gives_up(self, context: Context, batch: RunningBatch, error: Exception) -> str:
        """Why no attempt follows, although a retry could end differently; empty where one does."""
        if time.time() > batch.record.expires_at + LATE:
            return "its window ended more than a day ago"
        with for_airflow():
            state = batch.state()
        if state.outcome is not None:
            return ""  # what is finished is published, which takes no GPUs from others
        try:
            tried = count_failure(context["task_state_store"], context["ti"], state, _class_of(error))
        except Exception as problem:
            self.log.warning("Airflow's task state store took no note of the attempt: %s", problem)
            return ""
        return (
            f"{count_of(tried.count, 'attempt')} in a row answered no further request"
            if tried.are_enough
            else ""
        )

    def _ended(self, batch: RunningBatch, end: BatchEnd) -> dict[str, Any]:
        counts = end.counts
        self.log.info(
            "Batch %s is %s: %s of %s requests completed, %s failed.",
            batch.record.id, end.decision, f"{counts.completed:,}", f"{counts.total:,}", f"{counts.failed:,}",
        )  # fmt: skip
        return {"batch_id": batch.record.id, "status": end.decision, **counts.model_dump()}


def _class_of(error: Exception) -> FailureClass:
    return error.failure_class if isinstance(error, RaybatchError) else FailureClass.INTERNAL


class BatchesSweepOperator(BaseOperator):
    """Deletes files whose time is over, with what came of them.

    Returns what :func:`~airflow_provider_raybatch.batch_api.dags.sweep.sweep` does, how many of each kind. It
    fails where the storage does not answer, and a retry goes on.
    """

    ui_color: str = "#e6f2fb"

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete what has expired by now."""
        from airflow_provider_raybatch.batch_api.dags.sweep import sweep
        from airflow_provider_raybatch.batch_api.store.settings import required_settings
        from airflow_provider_raybatch.batch_api.store.store import batch_store

        with for_airflow():
            swept = sweep(batch_store(required_settings()))
        self.log.info("Deleted: %s.", ", ".join(f"{count:,} {what}" for what, count in swept.items()))
        return swept
