# SPDX-License-Identifier: Apache-2.0
"""`CreateRayCluster` and `DeleteRayCluster`: setup and teardown of a cluster that tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_raybatch.cluster.jobs_api.blocking import call_within, run_blocking
from airflow_provider_raybatch.coercion import from_text, is_absent, positive_seconds
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.exceptions import RayBatchException, for_airflow
from airflow_provider_raybatch.hooks.lookup import installation_id
from airflow_provider_raybatch.operators.attempt import Attempt, task_key
from airflow_provider_raybatch.operators.deadline import Deadline
from airflow_provider_raybatch.operators.own_clusters import spoils
from airflow_provider_raybatch.operators.rendering import LiteralTextOperator
from airflow_provider_raybatch.places.choosing import (
    given_cluster,
    is_list,
    place_of,
    refuse_task,
)
from airflow_provider_raybatch.places.providers import ClusterDefinition

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
    from airflow_provider_raybatch.kubernetes.clusters.run_cluster import RunCluster
    from airflow_provider_raybatch.kubernetes.connection import Kubernetes
    from airflow_provider_raybatch.kubernetes.kuberay.lease import LeasedRayCluster

_SHORTEST_LEASE = 120.0
"""Seconds in which tasks can still renew it."""
_LONGEST_LEASE = 365 * 86400.0
"""Kubernetes counts seconds in 31 bits."""
_STATE_SECONDS = 2.0
"""To ask Airflow for the task's state, of the five seconds that its supervisor leaves a killed task."""
_ENDED_BY_USER = frozenset({"failed", "restarting", "skipped", "removed", "upstream_failed"})


class CreateRayCluster(LiteralTextOperator):
    """Makes a Ray cluster on Kubernetes that several tasks of a DAG run lease; a setup task.

    Other tasks take it as ``ray_cluster=cluster.output``, whose engines stay between them with `keep_warm`.
    Each of them renews the cluster's lease, and ``DeleteRayCluster`` ends it as the teardown. If neither
    comes, the cluster ends itself.

    A retry or a clear takes the cluster that is there, unless it was made with other arguments; the lease
    alone replaces none. Returns plain data that names it, without secrets.

    :param ray_cluster: a :class:`~airflow_provider_raybatch.kubernetes.cluster.KubeRayCluster` without
        `name`. Without `workers`, it has none at first, and at most as many as 4 replicas of a GPU need.
    :param lease: seconds or ``timedelta`` that the cluster lives at least after a task has last used it, and
        at most half as long again; default 30 minutes, at least 2 minutes and at most a year. Longer than any
        pause between tasks, retries included.
    :raises SpecError: an argument can't be used, and no template or XCom decides it.
    """

    template_fields: Sequence[str] = ("ray_cluster", "lease")
    ui_color: str = "#e6f2fb"
    makes_leased_cluster: ClassVar[bool] = True
    _killed = False
    _cluster: RunCluster | None = None

    def __init__(
        self,
        *,
        ray_cluster: KubeRayCluster,
        lease: timedelta | float | str = 1800.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ray_cluster: Any = ray_cluster
        self.lease: Any = lease
        self._context: Context | None = None
        if not getattr(self, "_BaseOperator__from_mapped", False):
            try:
                refuse_task(ray_cluster)
                self._convert(at_parse=True)
            except SpecError as error:
                raise SpecError(f"Task {self.task_id!r}: {error}") from None

    def _convert(self, *, at_parse: bool = False) -> None:
        if not (at_parse and self.depends_on_run(self.lease)):
            self.lease = _lease(self.lease)
        if not (at_parse and self.depends_on_run(self.ray_cluster)):
            self.ray_cluster = _definition(self.ray_cluster)
        elif getattr(self.ray_cluster, "name", None):
            _refuse_name(self.ray_cluster.name)

    def execute(self, context: Context) -> Any:
        """Make or find the cluster, and wait until it takes jobs.

        :raises RayBatchException: it can't become ready; its `failure_class` tells why.
        """
        self._context = context
        with for_airflow():
            self._convert()
            kubernetes, key = self._kubernetes(), self._key(context)
            try:
                return self._made(kubernetes, key)
            except Exception as error:
                self._give_up(context, error)
                raise

    def on_kill(self) -> None:
        """Delete the cluster if a user ended the task while it came. Runs in a signal handler.

        In all other cases a next attempt takes it, or its first deadline ends it.
        """
        self._killed = True
        context = self._context
        if context is None or not self._is_ended(context):
            return
        self.log.info("The task is being killed; deleting its cluster.")
        self._delete(context, hurried=True)

    def _delete(self, context: Context, *, hurried: bool = False) -> None:
        from airflow_provider_raybatch.kubernetes.clusters.leased import delete_all_of

        uid = None if self._cluster is None else self._cluster.uid
        try:
            ending = delete_all_of(self._kubernetes(), self._key(context), uid, hurried=hurried)
            names = run_blocking(ending)
        except RaybatchError as error:
            self.log.error("The cluster could not be deleted; KubeRay ends it by its deadline: %s", error)
        else:
            self.log.info("Deleted: %s.", ", ".join(names) or "nothing was there")

    def _made(self, kubernetes: Kubernetes, key: SubmissionKey) -> dict[str, Any]:
        from airflow_provider_raybatch.kubernetes.clusters.leased import LeaseRequest, make_leased_cluster

        request = LeaseRequest(
            key=key,
            lease=self.lease,
            log=self.log,
            making=self._refuse_if_killed,
            on_cluster=self._has,
        )
        made = run_blocking(make_leased_cluster(kubernetes, request))
        self.log.info("RayCluster %s takes jobs; its lease is %.0f s.", made.name, made.lease)
        return made.to_json()

    def _kubernetes(self) -> Kubernetes:
        from airflow_provider_raybatch.kubernetes.connection import kubernetes_of

        return kubernetes_of(self.ray_cluster)

    def _key(self, context: Context) -> SubmissionKey:
        from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
        from airflow_provider_raybatch.kubernetes.kuberay.lease import LEASED_RUN

        team = getattr(context.get("dag_run"), "team_name", None)
        return SubmissionKey(task_key(context, installation_id(team)), LEASED_RUN)

    def _has(self, cluster: RunCluster) -> None:
        self._cluster = cluster
        self._refuse_if_killed()

    def _refuse_if_killed(self) -> None:
        if self._killed:
            raise RayBatchException("The task was killed while it made its cluster.", FailureClass.CANCELLED)

    def _give_up(self, context: Context, error: Exception) -> None:
        """Delete the cluster that can't be used, unless the next attempt takes it."""
        if not self._killed and (self._is_last(context, error) or spoils(error)):
            self._delete(context)

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
        known = isinstance(ray_cluster, ClusterDefinition) or not self.depends_on_run(ray_cluster)
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

    def _given(self) -> list[LeasedRayCluster]:
        given = from_text(self.ray_cluster)
        found = [given_cluster(one) for one in (given if is_list(given) else [given])]
        return [_made_by_setup(cluster) for cluster in found if cluster is not None]


def _made_by_setup(cluster: ClusterDefinition) -> LeasedRayCluster:
    from airflow_provider_raybatch.kubernetes.kuberay.lease import LeasedRayCluster

    if isinstance(cluster, LeasedRayCluster):
        return cluster
    raise SpecError(
        "ray_cluster: it was not made by a CreateRayCluster, so it is not deleted; give the output of one."
    )


async def _end_all(clusters: Sequence[LeasedRayCluster]) -> None:
    """Delete all at once, the others too if one does not go."""
    from airflow_provider_raybatch.kubernetes.clusters.leased import end_leased_cluster
    from airflow_provider_raybatch.kubernetes.connection import kubernetes_of

    ending = [end_leased_cluster(kubernetes_of(cluster), cluster.claim) for cluster in clusters]
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


def _definition(value: Any) -> ClusterDefinition:
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
