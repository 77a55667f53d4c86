# SPDX-License-Identifier: Apache-2.0
"""An attempt of a task: the run that it belongs to, and the end of jobs that no attempt takes over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.exceptions import RayBatchException, airflow_exception
from airflow_provider_raybatch.hooks.lookup import installation_id
from airflow_provider_raybatch.operators.deadline import Deadline
from airflow_provider_raybatch.operators.handover import last_run_before
from airflow_provider_raybatch.operators.plan import TaskRun
from airflow_provider_raybatch.operators.run_record import RunRecord, current_run, recorded_run
from airflow_provider_raybatch.places.place import Place

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from airflow_provider_raybatch.cluster.follow.loop import Log

_FINAL = (AirflowFailException, AirflowSensorTimeout, AirflowSkipException)
"""What ends a task whatever its retries and its policy are."""


@dataclass(frozen=True)
class Attempt:
    """One attempt of a task.

    :param read_place: where its jobs are.
    :param deadline: when its job must have ended; called only for a run, since the arguments that it comes
        from may be wrong.
    :param needs_key: whether its job can be followed only with the run's key.
    """

    context: Context
    read_place: Callable[[], Place]
    deadline: Callable[[], Deadline]
    needs_key: bool

    def begin(self) -> TaskRun:
        """The run that the attempt belongs to; a new one is recorded.

        :raises RayBatchException: the connection can't be used, or the task state store gives no answer.
        """
        place = self.read_place()
        store, ti = self.context["task_state_store"], self.context["ti"]
        team = getattr(self.context.get("dag_run"), "team_name", None)
        record = current_run(
            store,
            ti,
            lambda: place.namespace or installation_id(team),
            place.secret_seal_key,
            lambda known: self._was_cleared(place, known),
            needs_key=self.needs_key,
        )
        return self._run_of(place, record)

    def recorded(self) -> TaskRun | None:
        """The run on record, ``None`` without one; raises as :meth:`begin`."""
        record = recorded_run(self.context["task_state_store"])
        return None if record is None else self._run_of(self.read_place(), record)

    def stop_left_behind(self, log: Log) -> None:
        """Stop the jobs of earlier attempts and earlier runs; an error is only logged."""
        try:
            record = recorded_run(self.context["task_state_store"])
            if record is None or record.fingerprint is not None:
                return  # no job was submitted, or its result is recorded
            place = self.read_place()
            if place.embedded:
                return  # what it ran ended with its attempt
            run = self._run_of(place, record, Deadline())
            for one in (run.id, *(run.earlier or ())):
                stopped = run_blocking(place.stop_run(one, log))
                log.info("Stopped: %s.", ", ".join(stopped) or "nothing was running")
        except RaybatchError as error:
            log.error("The job could not be stopped: %s", error)

    def ends_with(self, error: BaseException, policy: RetryPolicy | None) -> bool:
        """Whether Airflow makes no further attempt after `error`, which `policy` may decide."""
        if isinstance(error, RaybatchError) and not isinstance(error, RayBatchException):
            error = airflow_exception(error)
        ti = self.context["ti"]
        if isinstance(error, _FINAL):
            return True
        if policy is None or ti.try_number > ti.max_tries:
            return ti.try_number > ti.max_tries and not isinstance(error, AirflowRescheduleException)
        decision = None
        with suppress(Exception):  # Airflow then retries
            decision = policy.evaluate(error, ti.try_number, ti.max_tries, self.context)
        return decision is not None and decision.action is RetryAction.FAIL

    def _was_cleared(self, place: Place, known: RunRecord) -> bool:
        is_first = self.context["ti"].try_number <= known.try_number
        if is_first or known.fingerprint is not None:
            return False
        return run_blocking(place.was_cleared(self._run_of(place, known).id))

    def _run_of(self, place: Place, record: RunRecord, deadline: Deadline | None = None) -> TaskRun:
        return TaskRun(
            task=task_key(self.context, place.namespace or record.namespace),
            record=record,
            place=place,
            deadline=self.deadline() if deadline is None else deadline,
            attempt=self.context["ti"].try_number,
            before=partial(last_run_before, self.context),
        )


def task_key(context: Context, namespace: str) -> TaskKey:
    """The task that runs, in a namespace of jobs."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else int(ti.map_index)
    return TaskKey(
        namespace=namespace, dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=index
    )


def stop_earlier_runs(run: TaskRun, keep: str, log: Log) -> bool:
    """Stop the jobs of earlier runs: those on record, or all jobs of the task if the record is lost.

    :param keep: submission id of this run's job.
    :return: whether all of them have ended; otherwise a warning is logged.
    """
    try:
        stopped = run_blocking(run.place.stop_earlier(run.earlier, run.id, keep, log))
    except RaybatchError as error:
        log.warning("A job of an earlier run of this task may still be there: %s", error)
        return False
    if stopped:
        log.info("Stopped what an earlier run of this task left: %s.", ", ".join(stopped))
    return True
