# SPDX-License-Identifier: Apache-2.0
"""The base of the operators: a job is submitted once whatever dies, followed, and handed over."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    airflow_exception,
    for_airflow,
)
from airflow_provider_raybatch.links.ray_dashboard import RayDashboardLink
from airflow_provider_raybatch.operators.attempt import Attempt
from airflow_provider_raybatch.operators.common_arguments import (
    COMMON,
    CommonArguments,
)
from airflow_provider_raybatch.operators.deadline import Deadline, attempt_deadline, longest_pause
from airflow_provider_raybatch.operators.following import Follower, latest_handle, outcome_without_trigger
from airflow_provider_raybatch.operators.own_clusters import (
    deferral,
    give_up,
    is_over,
    release,
    uid_of,
    with_window,
)
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.run_record import record_result, recorded_run
from airflow_provider_raybatch.operators.submitting import submit
from airflow_provider_raybatch.places.choosing import place_of
from airflow_provider_raybatch.places.existing import ConnectedCluster
from airflow_provider_raybatch.places.place import Cluster, NotReadyYet, Place

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo
    from airflow_provider_raybatch.cluster.submit.resolve import Submitted


TEMPLATED_OF_ALL = tuple(name for name in COMMON if name != "wait_for_completion")
"""The template fields that all operators have."""


class RayOperator(CommonArguments):
    """Base of the operators that run a job on a Ray cluster.

    A retry takes the job that an earlier attempt left, running or finished, even if it was handed over
    already. A clear starts a new job and stops the old one.

    :param ray_conn_id: Airflow connection of type ``ray``, default ``ray_default``. If its host is ``local``,
        the task starts a private Ray for itself and always runs blocking.
    :param ray_cluster: in place of `ray_conn_id`, a
        :class:`~airflow_provider_raybatch.kubernetes.cluster.KubeRayCluster`: a cluster on Kubernetes
        that is made for the job and goes with it, or the name of a running one.
    :param deferrable: free the worker while the job runs; default: Airflow's ``[operators]
        default_deferrable``.
    :param poll_interval: seconds between two polls, default 10; longer if a triggerer follows more than 700
        jobs on one cluster.
    :param timeout: seconds or ``timedelta`` from the start of each attempt to its job's deadline, at which it
        is stopped; default none. With `deferrable`, Airflow's `execution_timeout` counts as one, too.
    :param deadline: time by which the job of any attempt must have ended: a ``datetime``, or its text in ISO
        8601 with a time zone; default none. The earlier of it and `timeout` counts. After it nothing is
        submitted, and the task fails without a retry; the result of a finished job is still returned.
    :param cancel_on_kill: stop the job when the task is killed, marked or cleared while it runs; default yes.
        In blocking mode that includes a worker that is shut down.
    :param on_stale_state: a job of the same run that was submitted with other arguments: ``replace`` it
        (default), ``adopt`` it, or ``fail`` without a retry.
    :raises SpecError: an argument can't be used, and no template or XCom decides it.

    All are template fields and take XComs. Text for a number, a duration or a boolean is converted; ``None``
    and empty text count as not given. Generators become lists.
    """

    operator_extra_links: Sequence[BaseOperatorLink] = (RayDashboardLink(),)
    ui_color: str = "#e6f2fb"
    has_key: ClassVar[bool] = False
    """Whether the job shares a key with its followers."""
    wait_for_completion: bool = True
    dashboard_url: str | None = None
    _is_resumed = False
    _may_leave = True
    """Whether a wait for a cluster may go on in the triggerer."""

    @abstractmethod
    def plan(self, run: TaskRun) -> JobPlan:
        """Validate the rendered arguments and say what is to run.

        :raises SpecError: an argument can't be used.
        """

    @abstractmethod
    def hand_over(self, outcome: Outcome, handle: Mapping[str, Any]) -> dict[str, Any]:
        """What the task returns for a job that succeeded, as plain data.

        :param handle: `submission_id` and `dashboard_url` of the job.
        :raises RayBatchException: the job succeeded, but has nothing to hand over.
        """

    def lease_terms(self, run: TaskRun, submission_id: str) -> LeaseTerms | None:
        """What the follower tells its job; ``None`` for a job that doesn't listen."""
        return None

    def submitted(self, handle: Mapping[str, Any], info: JobInfo) -> dict[str, Any]:
        """What the task returns when it doesn't wait for the job, as plain data."""
        raise NotImplementedError

    def announce(self, context: Context, result: Mapping[str, Any]) -> None:
        """Publish the result beyond the task's return value."""

    def log_end(self, context: Context, result: Mapping[str, Any], outcome: Outcome | None = None) -> None:
        """Log how the run went; without `outcome`, an earlier attempt had returned `result`."""

    def execute(self, context: Context) -> Any:
        """Submit or adopt the job and follow it, here or in the triggerer.

        :raises RayBatchException: the job did not deliver; its `failure_class` tells why, its type whether
            Airflow retries.
        """
        self.dashboard_url = ""
        with for_airflow():
            return self._execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Take over from the trigger, which fired `event`; raises as :meth:`execute`."""
        from airflow_provider_raybatch.cluster.follow.outcome import Outcome

        outcome, handle = Outcome.from_json(dict(event["outcome"])), event["handle"]
        record = recorded_run(context["task_state_store"])
        if record is not None and handle["run_token"] != record.token:
            # SQLite numbers a new trigger like the one that a clear deleted, and Airflow finds tasks by it.
            self.log.info("Job %s is an earlier run's; following this run's own.", handle["submission_id"])
            return self.execute(context)
        if not outcome.saw_the_end:
            outcome = self._recheck(context, outcome, str(handle["submission_id"]))
        return self._end(context, outcome, handle)

    def execute_on_cluster(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Submit the job, as the trigger that waited for its cluster has fired; raises as :meth:`execute`."""
        failed, record = event["failed"], recorded_run(context["task_state_store"])
        if failed is None or (record is not None and event["handle"]["run_token"] != record.token):
            return self.execute(context)
        error = self._failure(context, FailureClass(failed["failure_class"]), failed["message"])
        run = self._attempt(context).recorded()
        if run is not None:
            self._give_up(context, run, error, uid_of(event["handle"]))
        raise error

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow's; if the trigger is gone, the job itself is asked how it ended."""
        self._is_resumed = True
        with self._leaving_no_job(context):
            self._convert()
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            known = outcome_without_trigger(error)
            handle = latest_handle(self._attempt(context), self.log)
            if handle is None and self.ray_cluster is not None and self.ray_cluster.name is None:
                self.log.warning("The trigger that waited for the cluster is gone, so it is waited for here.")
                self._may_leave = False
                return self.execute(context)
            if handle is None:
                failure_class = known.failure_class or FailureClass.INTERNAL
                raise self._failure(context, failure_class, f"{known.state}: {known.message}") from error
            return self._end(context, self._recheck(context, known, handle["submission_id"]), handle)

    def on_kill(self) -> None:
        """Stop the job of a task that is killed while it blocks a worker. Runs in a signal handler."""
        if self.cancel_on_kill:
            self._cancel_handler.kill(self.log)

    def _execute(self, context: Context) -> Any:
        with self._leaving_no_job(context):
            self._convert()
            run = self._attempt(context).begin()
            plan = self._planned(run)
        if run.record.fingerprint == plan.fingerprint:
            return self._returned_again(context, run.record.result)
        if isinstance(run.place, ConnectedCluster) and run.place.embedded:
            return self._execute_embedded(context, run, run.place, plan)
        cluster, submitted = self._submit(context, run, plan)
        handle = run.handle(cluster, submitted.submission_id, plan.fingerprint)
        self._show_link(context, handle["dashboard_url"])
        if not self.wait_for_completion:
            return self._succeeded(context, handle, self.submitted(handle, submitted.info))
        if self.deferrable and not submitted.info.status.is_terminal:
            self._defer(cluster, run, plan, submitted, handle)
        try:
            outcome = self._follow(cluster, run, plan, submitted)
        except Exception as error:
            self._let_go(context, error, handle)
            raise
        return self._end(context, outcome, handle)

    def _give_up(self, context: Context, run: TaskRun, error: Exception, uid: str | None) -> None:
        if run.place.makes_clusters:
            is_last = self._attempt(context).ends_with(error, self.retry_policy)
            give_up(run, error, uid, self.log, is_last=is_last)

    def _let_go(self, context: Context, error: Exception, handle: Mapping[str, Any]) -> None:
        """Delete the cluster of a job that may still run, if no later attempt will look at it."""
        if self._attempt(context).ends_with(error, self.retry_policy):
            self._release(context, handle, ended=False)

    @contextmanager
    def _leaving_no_job(self, context: Context) -> Iterator[None]:
        """Around what may fail before the cluster is asked; a first attempt has no job unless resumed."""
        self._cancel_handler.begins(self._attempt(context).stop_left_behind)
        try:
            yield
        except BaseException as error:
            if self._is_resumed or context["ti"].try_number > 1:
                self.before_failing(error, context)
            raise

    def before_failing(self, error: BaseException, context: Context) -> None:
        """Stop the job that an earlier attempt has left, if no later attempt will take it."""
        attempt = self._attempt(context)
        if "task_state_store" in context and attempt.ends_with(error, self.retry_policy):
            attempt.stop_left_behind(self.log)

    def _execute_embedded(
        self, context: Context, run: TaskRun, place: ConnectedCluster, plan: JobPlan
    ) -> Any:
        from airflow_provider_raybatch.cluster.local.head import embedded_cluster

        if not self.wait_for_completion:
            raise SpecError(
                f"wait_for_completion: connection {self.ray_conn_id!r} has the host 'local', and a "
                "private Ray ends with its task; name a cluster as its host, or wait for the job."
            )
        if self.deferrable:
            self.log.info("deferrable has no effect here: the task's private Ray lives on this worker.")
        run.deadline.refuse_if_passed()  # before a Ray starts
        try:
            with embedded_cluster(log=self.log.info, env=plan.environment) as address:
                run = replace(run, place=place.at(address))
                cluster, submitted = self._submit(context, run, plan)
                outcome = self._follow(cluster, run, plan, submitted)
                handle = run.handle(cluster, submitted.submission_id, plan.fingerprint)
                return self._end(context, outcome, handle)
        finally:
            # The private Ray has ended: a later kill (Airflow's own timeout makes one) has nothing to stop.
            self._cancel_handler.concerns_nothing()

    def _attempt(self, context: Context) -> Attempt:
        return Attempt(context, self._place, partial(self._deadlines, context), self.has_key)

    def _place(self) -> Place:
        return place_of(self.ray_conn_id, self.ray_cluster)

    def _planned(self, run: TaskRun) -> JobPlan:
        plan = self.plan(run)
        if not run.place.makes_clusters:
            return plan
        pause = longest_pause(self, run.attempt)
        plan = with_window(plan, run, pause, waits=self.wait_for_completion)
        return replace(plan, fingerprint=run.place.fingerprint_of(plan.fingerprint))

    def _deadlines(self, context: Context) -> Deadline:
        began = context["ti"].start_date.timestamp()
        bound = self.execution_timeout if self.deferrable else None
        return attempt_deadline(began, self.deadline, self.timeout, bound)

    @property
    def _follower(self) -> Follower:
        return Follower(
            poll_interval=self.poll_interval,
            cancel_on_kill=self.cancel_on_kill,
            cancel_handler=self._cancel_handler,
            log=self.log,
        )

    def _submit(self, context: Context, run: TaskRun, plan: JobPlan) -> tuple[Cluster, Submitted]:
        store, handler = context["task_state_store"], self._cancel_handler
        may_leave = self.deferrable and self._may_leave and run.place.makes_clusters
        try:
            return submit(run, plan, store, handler, self.on_stale_state, self.log, leave_waiting=may_leave)
        except NotReadyYet as waiting:
            self.log.info("The wait for the cluster goes on in the triggerer.")
            trigger, timeout = deferral(waiting, run, self.ray_cluster, cancel_on_kill=self.cancel_on_kill)
            self.defer(trigger=trigger, method_name="execute_on_cluster", timeout=timeout)
        except Exception as error:
            self._give_up(context, run, error, handler.uid)
            raise

    def _follow(self, cluster: Cluster, run: TaskRun, plan: JobPlan, submitted: Submitted) -> Outcome:
        return self._follower.follow(cluster, run, plan, submitted)

    def _defer(
        self, cluster: Cluster, run: TaskRun, plan: JobPlan, submitted: Submitted, handle: Mapping[str, Any]
    ) -> NoReturn:
        trigger, timeout = self._follower.deferral(self.ray_conn_id, cluster, run, plan, submitted, handle)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def _end(self, context: Context, outcome: Outcome, handle: Mapping[str, Any]) -> Any:
        self._cancel_handler.concerns_nothing()
        if outcome.failure_class is not None:
            message = f"Job {handle['submission_id']} {outcome.state}: {outcome.message}"
            error = self._failure(context, outcome.failure_class, message)
            if follows := self.next_attempt(context, error):
                error = type(error)(f"{error} {follows}", error.failure_class)
            if is_over(outcome):
                self._release(context, handle)
            elif outcome.state == "unreachable":
                self._let_go(context, error, handle)
            raise error
        result = self._succeeded(context, handle, self.hand_over(outcome, handle))
        self.log_end(context, result, outcome)
        return result

    def next_attempt(self, context: Context, error: RaybatchError) -> str:
        """A sentence on whether an attempt follows a failure that a retry may mend; else empty."""
        if isinstance(error, RayBatchFailException):
            return ""
        if self._attempt(context).ends_with(error, self.retry_policy):
            return "No attempt follows; raise retries, or clear it."
        ti = context["ti"]
        pause = "" if self.retry_policy else f" within {longest_pause(self, ti.try_number):g} s"
        return f"Airflow begins attempt {ti.try_number + 1} of {ti.max_tries + 1}{pause}."

    def _recheck(self, context: Context, known: Outcome, submission_id: str) -> Outcome:
        """The job's outcome; `known`, the trigger's, if the cluster doesn't answer."""
        ti, store = context["ti"], context["task_state_store"]
        try:
            run = self._attempt(context).recorded()
            if run is None:
                return known
            terms, retries_left = partial(self.lease_terms, run), ti.try_number <= ti.max_tries
            return self._follower.recheck(
                run, known, submission_id, store, terms, retries_left=retries_left, batch=self.has_key
            )
        except RaybatchError as error:
            self.log.error("The job can't be asked how it ended: %s", error)
            return known

    def _failure(self, context: Context, failure_class: FailureClass, message: str) -> RayBatchException:
        if failure_class is FailureClass.TIMEOUT:
            deadline = self._deadlines(context)
            message = f"{message} {deadline.remedy}".rstrip()
            if deadline.passed_for_good:
                return RayBatchFailException(message, failure_class)
        return airflow_exception(RaybatchError(message, failure_class))

    def _succeeded(self, context: Context, handle: Mapping[str, Any], result: dict[str, Any]) -> Any:
        self.announce(context, result)
        store, ti = context["task_state_store"], context["ti"]
        try:
            record_result(store, handle["run_token"], ti, handle["fingerprint"], result)
        except RayBatchException as error:
            self.log.warning("%s The result is not on record, so it asks for the job again.", error)
        else:
            if self.wait_for_completion:
                # Only now: without a record, a retry asks the cluster for the job.
                self._release(context, handle)
        return result

    def _release(self, context: Context, handle: Mapping[str, Any], *, ended: bool = True) -> None:
        """Delete the cluster that was made for a job; without its handle, all clusters of the run."""
        if self.ray_cluster is None:
            return
        try:
            run = self._attempt(context).recorded()
            if run is not None and run.place.makes_clusters:
                release(run, uid_of(handle), self.log, ended=ended)
        except RaybatchError as error:
            self.log.warning("The cluster is left, and ends itself after its job: %s", error)

    def _returned_again(self, context: Context, result: dict[str, Any]) -> Any:
        self.log.info(
            "An earlier attempt returned job %s, and this one is its retry: it returns the same. To run the "
            "task anew, clear it; if you just did, clear it once more.",
            result.get("submission_id"),
        )
        self._show_link(context, result.get("dashboard_url"))
        if self.wait_for_completion:
            self._release(context, {})  # that attempt may have died before it did
        self.announce(context, result)
        self.log_end(context, result)
        return result

    def _show_link(self, context: Context, url: str | None) -> None:
        self.dashboard_url = url or ""
        try:
            RayDashboardLink().show(context["ti"], url)
        except Exception as error:  # a missing link must not fail a job that exists
            self.log.warning("There will be no link to the Ray dashboard: %s", error)
