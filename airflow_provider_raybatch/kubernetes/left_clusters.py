# SPDX-License-Identifier: Apache-2.0
"""Clusters on Kubernetes that runs of this Airflow have left: find them, delete what is proven to be left.

No cluster needs it to go: KubeRay ends each one at a deadline. It shortens what a crash costs, and finds what
was changed by hand.
"""

from __future__ import annotations

import logging

from airflow.sdk import get_current_context

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.exceptions import for_airflow
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.connection import DEFAULT_KUBERNETES_CONN_ID, KubernetesServerHook
from airflow_provider_raybatch.kubernetes.kuberay.sweep import (
    ACTIVE_RUNS,
    GRACE,
    Leftover,
    RunFate,
    delete_left,
    find_left,
    judge_leftover,
)

_log = logging.getLogger(__name__)


def delete_left_clusters(
    kubernetes_conn_id: str = DEFAULT_KUBERNETES_CONN_ID,
    namespace: str | None = None,
    *,
    grace: float = GRACE,
    dry_run: bool = False,
) -> list[str]:
    """Delete the clusters that runs of this Airflow have left. Call it in a task.

    A RayJob goes if Airflow says that its task has ended; one whose DAG run was deleted, if its deadline has
    passed. Everything that can't be proven stays. The log says of each RayJob why.

    :param namespace: of Kubernetes; by default the connection's.
    :param grace: seconds that a RayJob must be old.
    :param dry_run: only log and return what would be deleted.
    :return: what was deleted, such as ``RayJob raybatch-...``.
    :raises RayBatchException: Kubernetes can't be reached, or refuses.
    """
    from airflow_provider_raybatch.hooks.lookup import installation_id

    api = KubernetesClient(KubernetesServerHook(kubernetes_conn_id).server(), namespace)
    installation = installation_id(_team())
    with for_airflow():
        now, found = run_blocking(_find(api))
        # Asked after the RayJobs were listed: a run that begins later has others.
        own = {one.task for one in found if one.task is not None and one.task.namespace == installation}
        fates = {task: _fate(task) for task in own}
        left = []
        for one in found:
            fate = None if one.task is None else fates.get(one.task)
            is_left, reason = judge_leftover(one, fate, installation, now, grace)
            left += [one] if is_left else []
            kept = "left" if is_left else "kept"
            _log.info("RayJob %s of %s: %s, since %s.", one.name, one.task, kept, reason)
        deleted = left if dry_run or not left else run_blocking(_delete(api, left))
    done = "Would delete" if dry_run else "Deleted"
    total = count_of(len(found), "RayJob")
    _log.info("%s %d of %s in namespace %s.", done, len(deleted), total, api.namespace)
    return [f"RayJob {one.name}" for one in deleted]


def _team() -> str | None:
    """The team of the running task, in a multi-team Airflow: its clusters have an id of their own."""
    try:
        return getattr(get_current_context().get("dag_run"), "team_name", None)
    except RuntimeError:  # outside of a task
        return None


async def _find(api: KubernetesClient) -> tuple[float, list[Leftover]]:
    async with api:
        found = await find_left(api)
        return api.now(), found


async def _delete(api: KubernetesClient, left: list[Leftover]) -> list[Leftover]:
    async with api:
        return await delete_left(api, left)


def _fate(task: TaskKey) -> RunFate:
    """What Airflow says of any task, asked from a running one. Blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    try:
        if RuntimeTaskInstance.get_dr_count(dag_id=task.dag_id, run_ids=[task.run_id]) == 0:
            return RunFate(exists=False)
        states = RuntimeTaskInstance.get_task_states(
            dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id], map_index=task.map_index
        ).get(task.run_id, {})
        active = RuntimeTaskInstance.get_dr_count(
            dag_id=task.dag_id, run_ids=[task.run_id], states=list(ACTIVE_RUNS)
        )
    except Exception:  # what can't be asked is not known, and so nothing is deleted
        _log.warning("Airflow's API server did not say how %s is.", task, exc_info=True)
        return RunFate(known=False)
    name = f"{task.task_id}_{task.map_index}" if task.map_index >= 0 else task.task_id
    if name not in states:
        return RunFate(exists=False)
    state = None if states[name] is None else str(states[name])
    return RunFate(state=state, run_active=active > 0)
