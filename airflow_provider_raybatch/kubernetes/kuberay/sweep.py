# SPDX-License-Identifier: Apache-2.0
"""Which RayJobs were left by runs that are over: find them, decide, and delete; what they own goes along.

What can't be proven is kept: those of another Airflow, young ones, and those of runs that Airflow does not
know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.errors import ChangedObjectError
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    FOR_EVER,
    INSTALLATION,
    LEASE,
    TASK,
    TERMINAL,
    epoch,
    installation_label,
)

GRACE = 600.0
"""Seconds that a RayJob must be old, and past its deadline: whoever ends a cluster is given this time."""
_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

ACTIVE_RUNS = ("queued", "running")
"""States of a DAG run whose tasks may still use a cluster."""


@dataclass(frozen=True)
class RunFate:
    """What Airflow says of a task.

    :param known: whether it said anything.
    :param exists: whether it knows the task's DAG run.
    :param state: of the task; ``None`` if it is to be scheduled.
    :param run_active: whether its DAG run is queued or runs.
    """

    known: bool = True
    exists: bool = True
    state: str | None = None
    run_active: bool = False

    @property
    def over(self) -> bool:
        """Whether the task has ended, and no retry is to come."""
        return self.known and self.exists and self.state in _OVER

    @property
    def shown(self) -> str:
        """For people."""
        if not self.known:
            return "Airflow gives no answer about its task"
        return (
            f"its task is {self.state or 'to be scheduled'}" if self.exists else "Airflow has no such DAG run"
        )


@dataclass(frozen=True)
class Leftover:
    """A RayJob that this package has made.

    :param task: whose it is, as its annotations say; ``None`` if they don't.
    :param installation: value of its label :data:`~.rayjob.INSTALLATION`.
    :param status: KubeRay's.
    :param ends: epoch seconds at which KubeRay ends it by itself; ``None`` if it does not.
    :param expires: epoch seconds at which KubeRay should have cleaned it up, if it has ended.
    :param deleting: whether it has been deleted, and waits for its finalizers.
    :param unfollowed: whether no task waits for its job, so that only the job's end ends it.
    :param leased: whether later tasks of its DAG run use it.
    """

    name: str
    uid: str
    created: float
    installation: str
    task: TaskKey | None = None
    status: str = ""
    ends: float | None = None
    expires: float | None = None
    deleting: bool = False
    unfollowed: bool = False
    leased: bool = False


def judge_leftover(
    one: Leftover, fate: RunFate | None, namespace: str, now: float, grace: float = GRACE
) -> tuple[bool, str]:
    """Whether a RayJob may be deleted, and why.

    :param fate: of its task, asked after it was seen; ``None`` if it names no task.
    :param namespace: the id of this Airflow.
    :param now: epoch seconds by the server's clock.
    """
    if one.installation != installation_label(namespace):
        return False, "it is of another Airflow"
    if one.deleting:
        return False, "it is being deleted"
    if now - one.created < grace:
        return False, f"it is younger than {in_words(grace)}"
    if one.task is None or one.task.namespace != namespace or fate is None:
        return False, "its annotations do not name a task of this Airflow"
    if not fate.known or (fate.exists and not fate.over):
        return False, fate.shown
    if one.leased and fate.run_active and one.status not in TERMINAL:
        return False, "tasks lease it, and its DAG run is not over"
    if one.status in TERMINAL:
        if one.expires is not None and now < one.expires + grace:
            return False, "it has ended, and its logs are kept for a while"
        return True, f"it has ended, and {fate.shown}"
    if one.ends is not None and now < one.ends + grace and (one.ends - now < grace or not fate.exists):
        # A kill has shortened its deadline, and its job may still write rows; or its run is another one's.
        return False, f"{fate.shown}, and KubeRay ends it in {in_words(max(0.0, one.ends - now))}"
    if one.unfollowed and fate.state == "success":
        return False, "its task does not wait for its job, and KubeRay ends it after that"
    if not fate.exists and one.ends is None:
        # Of a copy of this Airflow, maybe, which has the same id and other runs.
        return False, f"{fate.shown}; if no Airflow has it, delete it by hand"
    return True, fate.shown


def leftover_of(manifest: Mapping[str, Any]) -> Leftover:
    """Read a RayJob as the API server returned it."""
    metadata, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    deployment = status.get("jobDeploymentStatus") or ""
    finished, ttl = epoch(status.get("endTime")), spec.get("ttlSecondsAfterFinished")
    return Leftover(
        name=metadata["name"],
        uid=metadata["uid"],
        created=epoch(metadata["creationTimestamp"]) or 0.0,
        installation=(metadata.get("labels") or {}).get(INSTALLATION, ""),
        task=_task(metadata),
        status=deployment,
        ends=_ends(deployment, spec, status),
        expires=None if finished is None else finished + (ttl or 0),
        deleting=metadata.get("deletionTimestamp") is not None,
        unfollowed=spec.get("activeDeadlineSeconds") == FOR_EVER,
        leased=LEASE in (metadata.get("annotations") or {}),
    )


def _ends(deployment: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    """When KubeRay ends a RayJob by itself: which deadline counts depends on how far it is."""
    started = epoch(status.get("startTime"))
    if started is None or deployment in {"Suspended", "Suspending"} or spec.get("suspend"):
        return None
    names = {
        "Initializing": ("preRunningDeadlineSeconds", "activeDeadlineSeconds"),
        "Waiting": ("preRunningDeadlineSeconds",),
        "Running": ("activeDeadlineSeconds",),
    }.get(deployment, ())
    seconds = [spec[name] for name in names if spec.get(name)]
    return started + min(seconds) if seconds else None


def _task(metadata: Mapping[str, Any]) -> TaskKey | None:
    """The task that the annotations name, if the label is its digest."""
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    try:
        task = TaskKey(
            namespace=annotations["raybatch/namespace"],
            dag_id=annotations["raybatch/dag-id"],
            run_id=annotations["raybatch/run-id"],
            task_id=annotations["raybatch/task-id"],
            map_index=int(annotations.get("raybatch/map-index", "-1")),
        )
    except (KeyError, ValueError):
        return None
    return task if labels.get(TASK) == task.digest else None


async def find_left(api: KubernetesClient) -> list[Leftover]:
    """List what this package has made, the oldest first.

    :raises ClusterError: RayJobs can't be listed.
    """
    found = await api.list("RayJob", labels=INSTALLATION)
    return sorted(map(leftover_of, found), key=lambda one: one.created)


async def delete_left(api: KubernetesClient, rayjobs: Iterable[Leftover]) -> list[Leftover]:
    """Delete these very RayJobs.

    :return: those that were still there.
    :raises ClusterError: one can't be deleted.
    """
    deleted = []
    for one in rayjobs:
        with suppress(ChangedObjectError):  # another RayJob has its name now
            if await api.delete("RayJob", one.name, uid=one.uid):
                deleted.append(one)
    return deleted
