# SPDX-License-Identifier: Apache-2.0
"""Clusters on Kubernetes that runs of this Airflow have left: find them, delete what is proven to be left.

No cluster needs it to go: KubeRay ends each one at a deadline. It shortens what a crash costs, and finds what
was changed by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow.sdk import get_current_context

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.kuberay.client import KubernetesClient
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer
from airflow_provider_raybatch.cluster.kuberay.sweep import (
    GRACE,
    Leftover,
    RunFate,
    Sweep,
    delete_left,
    find_left,
    judge_leftover,
)
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.exceptions import for_airflow
from airflow_provider_raybatch.hooks.kubernetes import DEFAULT_KUBERNETES_CONN_ID, KubernetesServerHook

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftClusters:
    """What is in a namespace, and what follows for each RayJob.

    :param now: epoch seconds by the server's clock.
    :param judged: each RayJob that carries this package's labels, and its verdict.
    :param deleted: names of what was deleted.
    """

    namespace: str
    now: float
    judged: Sequence[tuple[Leftover, Sweep]]
    deleted: Sequence[str] = ()


def delete_left_clusters(
    kubernetes_conn_id: str = DEFAULT_KUBERNETES_CONN_ID,
    namespace: str | None = None,
    *,
    grace: float = GRACE,
) -> list[str]:
    """Delete the clusters that runs of this Airflow have left. Call it in a task.

    A RayJob goes if Airflow says that its task has ended; one whose DAG run was deleted, if its deadline has
    passed. Everything that can't be proven stays.

    :param namespace: of Kubernetes; by default the connection's.
    :param grace: seconds that a RayJob must be old.
    :return: what was deleted, such as ``RayJob raybatch-...``.
    :raises RayBatchException: Kubernetes can't be reached, or refuses.
    """
    from airflow_provider_raybatch.hooks.installation import installation_id
    from airflow_provider_raybatch.hooks.lookup import task_fate

    server = KubernetesServerHook(kubernetes_conn_id).server()
    with for_airflow():
        swept = sweep(server, namespace, installation_id(_team()), task_fate, grace=grace, delete=True)
    for one, verdict in swept.judged:
        done = "deleted" if verdict.delete else "kept"
        _log.info("RayJob %s: %s, since %s.", one.name, done, verdict.reason)
    total = count_of(len(swept.judged), "RayJob")
    _log.info("Deleted %d of %s in namespace %s.", len(swept.deleted), total, swept.namespace)
    return list(swept.deleted)


def _team() -> str | None:
    """The team of the running task, in a multi-team Airflow: its clusters have an id of their own."""
    try:
        return getattr(get_current_context().get("dag_run"), "team_name", None)
    except RuntimeError:  # outside of a task
        return None


def sweep(
    server: ApiServer,
    namespace: str | None,
    installation: str,
    ask: Callable[[TaskKey], RunFate],
    *,
    grace: float = GRACE,
    delete: bool = False,
) -> LeftClusters:
    """List a namespace, ask Airflow about each task, and delete what is proven to be left, if wanted.

    :param installation: the id of this Airflow.
    :param ask: what Airflow says of a task; blocks.
    :raises ClusterError: Kubernetes can't be reached, or refuses.
    """
    namespace, now, found = run_blocking(_find(server, namespace))
    own = {one.task for one in found if one.task is not None and one.task.namespace == installation}
    # Asked after the RayJobs were listed: a run that begins later has others.
    fates = {task: ask(task) for task in own}
    judged = [
        (one, judge_leftover(one, fates.get(one.task) if one.task else None, installation, now, grace))
        for one in found
    ]
    left = [one for one, verdict in judged if verdict.delete]
    deleted = run_blocking(_delete(server, namespace, left)) if delete and left else []
    return LeftClusters(namespace, now, judged, [f"RayJob {one.name}" for one in deleted])


async def _find(server: ApiServer, namespace: str | None) -> tuple[str, float, Sequence[Leftover]]:
    async with KubernetesClient(server, namespace) as api:
        found = await find_left(api)
        return api.namespace, api.now(), found


async def _delete(server: ApiServer, namespace: str | None, left: Sequence[Leftover]) -> Sequence[Leftover]:
    async with KubernetesClient(server, namespace) as api:
        return await delete_left(api, left)
