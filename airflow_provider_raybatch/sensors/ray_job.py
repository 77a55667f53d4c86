# SPDX-License-Identifier: Apache-2.0
"""`RayJobSensor`: waits for a Ray job that was submitted elsewhere, and never changes it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink, BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.coercion import boolean
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
    for_airflow,
)
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.links.ray_dashboard import RayDashboardLink
from airflow_provider_raybatch.places.choosing import (
    check_one_cluster,
    check_returned,
    existing_cluster_of,
    given_cluster,
    leased_cluster_task,
)
from airflow_provider_raybatch.places.existing import ConnectedCluster
from airflow_provider_raybatch.places.providers import provider_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_raybatch.cluster.follow.outcome import Outcome, Verdict
    from airflow_provider_raybatch.places.existing import ExistingCluster
    from airflow_provider_raybatch.places.providers import ClusterDefinition

_TRIGGER_IS_GONE = "__fail__"  # Airflow's next_method after a deferral's timeout and a trigger's failure


class RayJobSensor(BaseSensorOperator):
    """Waits until a job has succeeded; fails, without retries, when it ended in any other way.

    Returns ``{"submission_id", "status", "dashboard_url"}``.

    :param submission_id: the job's id, or the result of the ``RayJobOperator`` that submitted it.
    :param ray_conn_id: Airflow connection of type ``ray`` that names a cluster, default ``ray_default``.
    :param ray_cluster: in place of `ray_conn_id`, a ``KubeRayCluster(name=...)``. Neither is needed for the
        job of a cluster that was made for it: the result of the ``RayJobOperator`` says where it is.
    :param deferrable: free the worker while the job runs; default: Airflow's ``[operators]
        default_deferrable``.

    The other parameters are those of Airflow's sensors; while deferred, `poke_interval` is the time between
    two polls, and the driver's log lines appear in the task's log. The job goes on when the sensor ends. A
    sensor renews no `orphan_timeout`. It tolerates a silent cluster until its `timeout`; while deferred,
    after 10 minutes the attempt fails and may be retried.
    """

    template_fields: Sequence[str] = ("ray_conn_id", "submission_id", "deferrable", "ray_cluster")
    operator_extra_links: Sequence[BaseOperatorLink] = (RayDashboardLink(),)
    ui_color: str = "#e6f2fb"
    dashboard_url: str | None = None

    def __init__(
        self,
        *,
        submission_id: str | Mapping[str, Any],
        ray_conn_id: str = DEFAULT_CONN_ID,
        ray_cluster: ClusterDefinition | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.submission_id = submission_id
        self.ray_conn_id = ray_conn_id
        self.ray_cluster: Any = ray_cluster
        self._cluster_from = leased_cluster_task(ray_cluster)
        self.deferrable = deferrable
        self._polled = False

    def execute(self, context: Context) -> Any:
        """Wait here, or in the triggerer."""
        with for_airflow():
            return self._execute(context)

    def _execute(self, context: Context) -> Any:
        self.dashboard_url = ""
        check_returned(self._cluster_from, self.ray_cluster)
        self.ray_conn_id, self.ray_cluster = (
            self.ray_conn_id or DEFAULT_CONN_ID,
            given_cluster(self.ray_cluster),
        )
        check_one_cluster(self.ray_conn_id, self.ray_cluster)
        self.dashboard_url = self._dashboard_url() or ""
        RayDashboardLink().show(context["ti"], self.dashboard_url)
        deferrable = boolean(self.deferrable, "deferrable")
        if not deferrable:
            return super().execute(context)
        try:
            verdict = self._poll(context)
            if verdict is not None and verdict.outcome is not None:
                return self._judge(verdict.outcome)
        except RayBatchException as error:
            # As Airflow's sensors do where they poke.
            if self.never_fail or (self.soft_fail and isinstance(error, RayBatchFailException)):
                raise AirflowSkipException(str(error)) from error
            raise
        session_name = None if verdict is None else verdict.state.session_name
        return self.defer(
            trigger=self._trigger(session_name),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def _trigger(self, session_name: str | None) -> BaseTrigger:
        from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

        if (made := self._made()) is not None:
            return provider_of(made).ended_trigger(made, self.poke_interval)
        return RayJobTrigger(
            ray_conn_id=self.ray_conn_id,
            submission_id=self._job(),
            session_name=session_name,
            poll_interval=self.poke_interval,
            cancel_on_kill=False,
            cancel_on_timeout=False,
            deferred_at=time.time(),
            ray_cluster=None if self.ray_cluster is None else self.ray_cluster.to_json(),
        )

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        verdict = self._poll(context)
        if verdict is None or verdict.outcome is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._judge(verdict.outcome))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Take over from the trigger."""
        from airflow_provider_raybatch.cluster.follow.outcome import Outcome

        outcome = Outcome.from_json(dict(event["outcome"]))
        return self._judge(outcome if outcome.saw_the_end else self._end_now(context) or outcome)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow's; if the trigger is gone, a job that has ended since then counts."""
        if next_method == _TRIGGER_IS_GONE and (outcome := self._end_now(context)) is not None:
            next_method, next_kwargs = "execute_complete", {"event": {"outcome": outcome.to_json()}}
        return super().resume_execution(next_method, next_kwargs, context)

    def _end_now(self, context: Context) -> Outcome | None:
        """How the job ended; ``None`` while it runs or the cluster does not answer."""
        self._polled = True  # the address was right when the task deferred
        try:
            verdict = self._poll(context)
        except RayBatchException as error:
            self.log.warning("The job can't be asked how it ended: %s", error)
            return None
        return None if verdict is None else verdict.outcome

    def _poll(self, context: Context) -> Verdict | None:
        """Poll once; ``None`` if the cluster does not answer."""
        from airflow_provider_raybatch.cluster.jobs_api.errors import (
            ClusterUnreachableError,
            NotARayDashboardError,
        )

        first = self._is_first_poll(context)
        if (made := self._made()) is not None:
            return self._poll_provider(made)
        job = self._job()
        with for_airflow():
            try:
                return run_blocking(_asked(existing_cluster_of(self.ray_conn_id, self.ray_cluster), job))
            except ClusterUnreachableError as error:
                # A proxy also answers 404 while its backend is down; a wrong address does so from the start.
                if first and isinstance(error, NotARayDashboardError):
                    raise
                self.log.warning("%s Asking again later.", error)
                return None

    def _poll_provider(self, made: Mapping[str, Any]) -> Verdict | None:
        from airflow_provider_raybatch.cluster.follow.outcome import FollowState, Verdict
        from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError

        with for_airflow():
            try:
                return Verdict(FollowState(), outcome=provider_of(made).outcome(made))
            except ClusterUnreachableError as error:
                self.log.warning("%s Asking again later.", error)
                return None

    def _made(self) -> Mapping[str, Any] | None:
        """Where the cluster is that was made for the job; ``None`` for one that others started."""
        given: object = self.submission_id
        return given.get("ray_cluster") if isinstance(given, Mapping) else None

    def _is_first_poll(self, context: Context) -> bool:
        """Whether this attempt asks for the first time, in this process or before a reschedule."""
        polled, self._polled = self._polled, True
        return not polled and not (self.reschedule and context["ti"].get_first_reschedule_date(context))

    def _judge(self, outcome: Outcome) -> dict[str, Any]:
        _check_success(outcome, self._job(), self._where)
        return {
            "submission_id": self._job(),
            "status": "SUCCEEDED",
            "dashboard_url": self._dashboard_url(),
        }

    @property
    def _where(self) -> str:
        if self._made() is not None:
            return "the cluster of the job"
        given = self.ray_cluster
        return f"the cluster of {self.ray_conn_id!r}" if given is None else f"the cluster {given.name!r}"

    def _dashboard_url(self) -> str | None:
        if self._made() is not None:
            given: Any = self.submission_id
            url = given.get("dashboard_url")
            return url if isinstance(url, str) else None
        if self.ray_cluster is None:
            return ConnectedCluster(RayHook(self.ray_conn_id).read()).job_page(self._job())
        return None

    def _job(self) -> str:
        given: object = self.submission_id
        found = given.get("submission_id") if isinstance(given, Mapping) else given
        if not isinstance(found, str) or not found:
            raise RayBatchFailException(f"submission_id: {shown(given)} names no job; give its id as text.")
        return found


async def _asked(place: ExistingCluster, job: str) -> Verdict:
    from airflow_provider_raybatch.cluster.follow.outcome import FollowState
    from airflow_provider_raybatch.cluster.follow.poll import Followed, poll_once
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient

    followed = Followed(job)
    async with RayJobsClient((await place.cluster()).address) as client:
        session_name = (await client.version()).session_name
        verdict = await poll_once(client, followed, FollowState(session_name=session_name))
        # Such polls of an ended job are counted until one gives up its log; a poke keeps no count.
        while (
            verdict.outcome is None
            and verdict.state.polls_without_log
            and verdict.state.unreachable_since is None
        ):
            verdict = await poll_once(client, followed, verdict.state)
        return verdict


def _check_success(outcome: Outcome, job: str, where: str) -> None:
    """:raises RayBatchException: the job ended in another way, or can't be asked."""
    if outcome.failure_class is FailureClass.CLUSTER_UNREACHABLE:
        raise RayBatchUnavailableException(outcome.message)
    if outcome.info is None and outcome.state in {"deleted", "lost"}:
        raise RayBatchFailException(
            f"submission_id: {where} knows no job {job!r} (any more); correct the id or the connection.",
            outcome.failure_class or FailureClass.USER_ERROR,
        )
    if outcome.failure_class is not None:
        # Another try of the sensor would find the same ended job.
        message = f"Job {job} {outcome.state}: {outcome.message}"
        raise RayBatchFailException(message, outcome.failure_class)
