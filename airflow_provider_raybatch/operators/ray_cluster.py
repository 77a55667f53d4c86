# SPDX-License-Identifier: Apache-2.0
"""`CreateRayCluster` and `DeleteRayCluster`: setup and teardown of a cluster that tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from airflow_provider_raybatch.cluster.jobs_api.blocking import call_within, run_blocking
from airflow_provider_raybatch.cluster.jobs_api.errors import StaleStateError
from airflow_provider_raybatch.coercion import from_text, is_absent, positive_seconds
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.exceptions import RayBatchException, airflow_exception, for_airflow
from airflow_provider_raybatch.hooks.installation import installation_id
from airflow_provider_raybatch.operators.attempt import Attempt, task_key
from airflow_provider_raybatch.operators.common_arguments import DEFERRABLE, converted
from airflow_provider_raybatch.operators.deadline import Deadline
from airflow_provider_raybatch.operators.own_clusters import spoils
from airflow_provider_raybatch.operators.plan import DEFERRAL_GRACE
from airflow_provider_raybatch.operators.rendering import LiteralTextOperator
from airflow_provider_raybatch.places.choosing import (
    given_cluster,
    is_cluster,
    is_list,
    place_of,
    refuse_task,
)
from airflow_provider_raybatch.places.place import NotReadyYet

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.kuberay.cluster import KubeRayCluster
    from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.places.kubernetes import Kubernetes
    from airflow_provider_raybatch.places.own_cluster import OwnCluster

_SHORTEST_LEASE = 120.0
"""Seconds in which tasks can still renew it."""
_LONGEST_LEASE = 365 * 86400.0
"""Kubernetes counts seconds in 31 bits."""
_STATE_SECONDS = 2.0
"""To ask Airflow for the task's state, of the five seconds that its supervisor leaves a killed task."""
_ENDED_BY_USER = frozenset({"failed", "restarting", "skipped", "removed", "upstream_failed"})


class CreateRayCluster(LiteralTextOperator):
    """Makes a Ray cluster on Kubernetes that several tasks of a DAG run share; a setup task.

    Other tasks take it as ``ray_cluster=cluster.output``, whose engines stay between them with `keep_warm`.
    Each of them renews the cluster's lease, and ``DeleteRayCluster`` ends it as the teardown. If neither
    comes, the cluster ends itself.

    A retry or a clear takes the cluster that is there. Returns plain data that names it, without secrets.

    :param ray_cluster: a :class:`~airflow_provider_raybatch.cluster.kuberay.cluster.KubeRayCluster` without
        `name`. Without `workers`, it has none at first, and at most as many as 4 replicas of a GPU need.
    :param lease: seconds or ``timedelta`` that the cluster lives at least after a task has last used it, and
        at most half as long again; default 30 minutes, at least 2 minutes and at most a year. Longer than any
        pause between tasks, retries included.
    :param deferrable: free the worker while the cluster comes; default is Airflow's ``[operators]
        default_deferrable``.
    :param cancel_on_kill: delete the cluster when a user marks the task as failed or clears it while the
        cluster comes; default yes.
    :param on_stale_state: what to do about a cluster of the same run that was made with other arguments:
        ``replace`` it (default), ``adopt`` it, or ``fail`` without a retry. The lease alone replaces none.
    :raises SpecError: an argument can't be used, and no template or XCom decides it.
    """

    template_fields: Sequence[str] = (
        "ray_cluster",
        "lease",
        "deferrable",
        "cancel_on_kill",
        "on_stale_state",
    )
    text_fields: ClassVar[frozenset[str]] = frozenset({"on_stale_state"})
    ui_color: str = "#e6f2fb"
    makes_shared_cluster: ClassVar[bool] = True
    _may_leave = True
    _killed = False
    _cluster: OwnCluster | None = None

    def __init__(
        self,
        *,
        ray_cluster: KubeRayCluster,
        lease: timedelta | float | str = 1800.0,
        deferrable: bool = DEFERRABLE,
        cancel_on_kill: bool = True,
        on_stale_state: OnStaleState = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ray_cluster: Any = ray_cluster
        self.lease: Any = lease
        self.deferrable = deferrable
        self.cancel_on_kill = cancel_on_kill
        self.on_stale_state = on_stale_state
        self._context: Context | None = None
        if not getattr(self, "_BaseOperator__from_mapped", False):
            try:
                refuse_task(ray_cluster)
                self._convert(at_parse=True)
            except SpecError as error:
                raise SpecError(f"Task {self.task_id!r}: {error}") from None

    def _convert(self, *, at_parse: bool = False) -> None:
        for name in self.template_fields:
            value = getattr(self, name)
            if at_parse and self.depends_on_run(value) and name != "ray_cluster":
                continue
            if name == "lease":
                value = _lease(value)
            elif name != "ray_cluster":
                value = converted(name, value)
            elif not at_parse or not self.depends_on_run(value):
                value = _definition(value)
            elif getattr(value, "name", None):
                _refuse_name(value.name)
            setattr(self, name, value)

    def execute(self, context: Context) -> Any:
        """Make or find the cluster, and wait until it takes jobs, here or in the triggerer.

        :raises RayBatchException: it can't become ready; its `failure_class` tells why.
        """
        self._context = context
        with for_airflow():
            self._convert()
            kubernetes, key = self._kubernetes(), self._key(context)
            try:
                return self._made(context, kubernetes, key)
            except Exception as error:
                self._give_up(context, kubernetes, key, error)
                raise

    def execute_on_cluster(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Take over from the trigger that has waited for the cluster; raises as :meth:`execute`."""
        failed = event["failed"]
        if failed is None:
            return self.execute(context)
        error = airflow_exception(RaybatchError(failed["message"], FailureClass(failed["failure_class"])))
        with for_airflow():
            self._convert()
            kubernetes, key = self._kubernetes(), self._key(context)
        self._give_up(context, kubernetes, key, error, event["handle"]["uid"])
        raise error

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow's; if the trigger is gone, the cluster is waited for here."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout):
            self.log.warning("The trigger that waited for the cluster is gone, so it is waited for here.")
            self._may_leave = False
            return self.execute(context)

    def on_kill(self) -> None:
        """Delete the cluster if a user ended the task while it came. Runs in a signal handler.

        In all other cases a next attempt takes it, or its first deadline ends it.
        """
        self._killed = True
        context = self._context
        if context is None or not self.cancel_on_kill or not self._is_ended(context):
            return
        from airflow_provider_raybatch.places.sharing import delete_all_of

        self.log.info("The task is being killed; deleting its cluster.")
        try:
            uid = None if self._cluster is None else self._cluster.uid
            names = run_blocking(delete_all_of(self._kubernetes(), self._key(context), uid, hurried=True))
        except RaybatchError as error:
            self.log.error("The cluster could not be deleted; KubeRay ends it by its deadline: %s", error)
        else:
            self.log.info("Deleted: %s.", ", ".join(names) or "there was nothing yet")

    def _made(self, context: Context, kubernetes: Kubernetes, key: SubmissionKey) -> dict[str, Any]:
        from airflow_provider_raybatch.places.sharing import SharedOrder, make_shared_cluster

        order = SharedOrder(
            key=key,
            lease=self.lease,
            on_stale_state=self.on_stale_state,
            log=self.log,
            making=self._refuse_if_killed,
            on_cluster=self._has,
            leave_waiting=self.deferrable and self._may_leave,
        )
        try:
            made = run_blocking(make_shared_cluster(kubernetes, order))
        except NotReadyYet as waiting:
            self.log.info("The wait for the cluster goes on in the triggerer.")
            self._defer(waiting)
        self.log.info("RayCluster %s takes jobs; its lease is %.0f s.", made.name, made.lease)
        return made.to_json()

    def _defer(self, waiting: NotReadyYet) -> None:
        from airflow_provider_raybatch.triggers.ray_cluster import SharedClusterTrigger

        trigger = SharedClusterTrigger(
            ray_cluster=waiting.cluster.for_trigger() or {},
            submission_id="",
            cluster_wait=waiting.cluster_wait,
            queue_wait=waiting.queue_wait,
            cancel_on_kill=self.cancel_on_kill,
            handle={"uid": waiting.cluster.uid},
        )
        self.defer(trigger=trigger, method_name="execute_on_cluster", timeout=waiting.timeout(DEFERRAL_GRACE))

    def _kubernetes(self) -> Kubernetes:
        from airflow_provider_raybatch.places.kubernetes import kubernetes_of

        return kubernetes_of(self.ray_cluster)

    def _key(self, context: Context) -> SubmissionKey:
        from airflow_provider_raybatch.cluster.kuberay.shared import SHARED_RUN
        from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey

        team = getattr(context.get("dag_run"), "team_name", None)
        return SubmissionKey(task_key(context, installation_id(team)), SHARED_RUN)

    def _has(self, cluster: OwnCluster) -> None:
        self._cluster = cluster
        self._refuse_if_killed()

    def _refuse_if_killed(self) -> None:
        if self._killed:
            raise RayBatchException("The task was killed while it made its cluster.", FailureClass.CANCELLED)

    def _give_up(
        self,
        context: Context,
        kubernetes: Kubernetes,
        key: SubmissionKey,
        error: Exception,
        uid: str | None = None,
    ) -> None:
        """Delete the cluster that can't be used, unless the next attempt takes it."""
        if self._killed or isinstance(error, StaleStateError):
            return
        if not (self._is_last(context, error) or spoils(error)):
            return
        from airflow_provider_raybatch.places.sharing import delete_all_of

        try:
            known = uid if uid or self._cluster is None else self._cluster.uid
            names = run_blocking(delete_all_of(kubernetes, key, known))
        except RaybatchError as failed:
            self.log.warning("The cluster is left to KubeRay, which ends it by its deadline: %s", failed)
        else:
            self.log.info("Deleted: %s.", ", ".join(names) or "nothing was there")

    def _is_last(self, context: Context, error: Exception) -> bool:
        place = partial(place_of, "", self.ray_cluster)
        return Attempt(context, place, Deadline, False).ends_with(error, self.retry_policy)

    def _is_ended(self, context: Context) -> bool:
        """Whether a user ended the task, or no attempt follows; ``False`` where Airflow doesn't say."""
        from airflow_provider_raybatch.hooks.lookup import task_state

        ti = context["ti"]
        index = -1 if ti.map_index is None else int(ti.map_index)
        try:
            state = call_within(_STATE_SECONDS, lambda: task_state(ti.dag_id, ti.run_id, ti.task_id, index))
        except Exception as error:
            self.log.warning("Airflow does not say why the task is killed (%s); its cluster stays.", error)
            return False
        # A process that Airflow has given up may be killed when the next attempt has the cluster.
        is_last = state == "running" and ti.try_number > ti.max_tries
        return state is None or state in _ENDED_BY_USER or is_last


class DeleteRayCluster(LiteralTextOperator):
    """Deletes the cluster that a ``CreateRayCluster`` has made, and waits until it is gone; a teardown task.

    A cluster that has gone already is a success, and so is a ``CreateRayCluster`` that has returned none:
    what such a task may have left ends itself. Of a mapped one, it deletes all clusters.

    :param ray_cluster: what the ``CreateRayCluster`` returned: its ``output``.
    :raises SpecError: it is something else.
    """

    template_fields: Sequence[str] = ("ray_cluster",)
    ui_color: str = "#e6f2fb"

    def __init__(
        self, *, ray_cluster: Mapping[str, Any] | Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ray_cluster: Any = ray_cluster
        known = is_cluster(ray_cluster) or not self.depends_on_run(ray_cluster)
        if not getattr(self, "_BaseOperator__from_mapped", False):
            try:
                refuse_task(ray_cluster)
                if known:
                    self._given()
            except SpecError as error:
                raise SpecError(f"Task {self.task_id!r}: {error}") from None

    def execute(self, context: Context) -> None:
        """Delete the cluster, if it is there.

        :raises RayBatchException: it does not go, or Kubernetes gives no answer.
        """
        with for_airflow():
            clusters = self._given()
            if not clusters:
                self.log.info(
                    "There is nothing to delete: ray_cluster is empty, so its task has returned no cluster."
                )
                return
            run_blocking(_end_all(clusters))
            self.log.info("Gone: RayCluster %s.", ", ".join(str(cluster.name) for cluster in clusters))

    def _given(self) -> list[SharedRayCluster]:
        given = from_text(self.ray_cluster)
        found = [given_cluster(one) for one in (given if is_list(given) else [given])]
        return [_made_by_setup(cluster) for cluster in found if cluster is not None]


def _made_by_setup(cluster: KubeRayCluster) -> SharedRayCluster:
    from airflow_provider_raybatch.cluster.kuberay.shared import SharedRayCluster

    if isinstance(cluster, SharedRayCluster):
        return cluster
    raise SpecError(
        "ray_cluster: it was not made by a CreateRayCluster, so it is not deleted; give the output of one."
    )


async def _end_all(clusters: Sequence[SharedRayCluster]) -> None:
    """Delete all at once, the others too if one does not go."""
    from airflow_provider_raybatch.places.kubernetes import kubernetes_of
    from airflow_provider_raybatch.places.sharing import end_shared_cluster

    ending = [end_shared_cluster(kubernetes_of(cluster), cluster.claim) for cluster in clusters]
    for failed in await asyncio.gather(*ending, return_exceptions=True):
        if failed is not None:
            raise failed


def _lease(value: Any) -> float:
    seconds = 1800.0 if is_absent(value) else positive_seconds(value, "lease")
    if not _SHORTEST_LEASE <= seconds <= _LONGEST_LEASE:
        raise SpecError(
            f"lease: it must be {_SHORTEST_LEASE:g} to {_LONGEST_LEASE:.0f} seconds, but it is {seconds:g}."
        )
    return seconds


def _definition(value: Any) -> KubeRayCluster:
    found = given_cluster(value)
    if found is None:
        raise SpecError("ray_cluster: it is missing; give the KubeRayCluster that is to be made.")
    if found.name is not None:
        _refuse_name(found.name)
    return found


def _refuse_name(name: str) -> None:
    raise SpecError(
        f"ray_cluster: its name {name!r} is that of a running cluster, and none is made; leave name out, or "
        "give this cluster to the tasks themselves."
    )
