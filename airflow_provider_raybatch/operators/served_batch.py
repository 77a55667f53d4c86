# SPDX-License-Identifier: Apache-2.0
"""`ServedBatchOperator`: answers one batch of the Batch API, which the DAG run's configuration names."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION

from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.exceptions import RayBatchFailException, for_airflow
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.served_attempts import attempts_in_vain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.batches.running import RunningBatch
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch
    from airflow_provider_raybatch.contract.batch_api.records import BatchEnd

LATE = 24 * 3600.0
"""Seconds after the end of its window in which a batch's finished rows are still published by a retry."""


class ServedBatchOperator(RayBatchInferenceOperator):
    """Answers the batch that ``{"batch_id": ...}``, the configuration of its DAG run, names.

    It is the task of a DAG of :func:`~airflow_provider_raybatch.serving.served_dag.serve_batches`. Owner,
    input and window stand in the batch's signed record, so no configuration makes it read or write anything
    else. A task whose batch has ended does nothing.

    The task fails where the system fails: batches of invalid files fail, and their tasks succeed. Attempts go
    on after the window of a batch, for a day, to publish what is finished. They end before where jobs run
    and answer nothing more, see :mod:`~airflow_provider_raybatch.operators.served_attempts`.

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
        lines: dict[str, Any] = {"format": OPENAI_BATCH, "destination_format": OPENAI_BATCH}
        super().__init__(
            source=SET_DURING_EXECUTION,  # type: ignore[arg-type]
            destination=SET_DURING_EXECUTION,  # type: ignore[arg-type]
            served_model_name=served_model_name,
            report_samples=0,
            **lines,
            **kwargs,
        )
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

    def _given_later(self, given: Mapping[str, Any]) -> Collection[str]:
        return ("source", "destination")

    @property
    def _served(self) -> ServedBatch | None:
        return None if self._batch is None else self._batch.served

    def _taken(self, context: Context) -> RunningBatch:
        """The batch of the run; its locations become the task's arguments."""
        from airflow_provider_raybatch.batches.running import running_batch
        from airflow_provider_raybatch.batches.validation import LONGEST_SERVED_LINE, FileLimits

        run, line = context["dag_run"], self.max_line_bytes or LONGEST_SERVED_LINE
        limits = FileLimits(self.max_requests, self.max_file_bytes, max_line_bytes=line)
        names = {"run_id": run.run_id, "dag_id": context["ti"].dag_id, "model": str(self.served_model_name)}
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
            tried = attempts_in_vain(context["task_state_store"], context["ti"], state, _class_of(error))
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
