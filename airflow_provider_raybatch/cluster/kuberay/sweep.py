# SPDX-License-Identifier: Apache-2.0
"""Which RayJobs, RayClusters and Secrets were left by runs that are over: find them, decide, and delete.

What can't be proven is kept: objects of another Airflow, young ones, and those of runs that Airflow does
not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_raybatch.cluster.kuberay.api import KubernetesApi, Manifest
from airflow_provider_raybatch.cluster.kuberay.errors import ChangedObjectError, ForbiddenError
from airflow_provider_raybatch.cluster.kuberay.rayjob import (
    FOR_EVER,
    INSTALLATION,
    SHARED,
    TASK,
    TERMINAL,
    epoch,
    installation_label,
)
from airflow_provider_raybatch.contract.durations import in_words
from airflow_provider_raybatch.contract.submission import TaskKey

GRACE = 600.0
"""Seconds that an object must be old, and past its deadline: whoever ends a cluster is given this time."""
_STUCK = 3600.0
_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

ACTIVE_RUNS = ("queued", "running")
"""States of a DAG run whose tasks may still use a cluster."""

LeftKind = Literal["RayJob", "RayCluster", "Secret"]


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
    """An object that this package has made, or KubeRay for it.

    :param task: whose it is, as its annotations say; ``None`` if they don't.
    :param installation: value of its label :data:`~.rayjob.INSTALLATION`.
    :param status: KubeRay's, of a RayJob; empty for others.
    :param ends: epoch seconds at which KubeRay ends it by itself; ``None`` if it does not.
    :param expires: epoch seconds at which KubeRay should have cleaned up an ended RayJob.
    :param deleted: epoch seconds of its deletion, if it waits for its finalizers.
    :param gpus: that its pods have now, as KubeRay counts.
    :param unfollowed: whether no task waits for its job, so that only the job's end ends it.
    :param shared: whether later tasks of its DAG run use it.
    """

    kind: LeftKind
    name: str
    uid: str
    created: float
    installation: str
    task: TaskKey | None = None
    status: str = ""
    ends: float | None = None
    expires: float | None = None
    deleted: float | None = None
    gpus: str = ""
    unfollowed: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Sweep:
    """Whether an object may be deleted, and why."""

    delete: bool
    reason: str


def judge_leftover(
    one: Leftover, fate: RunFate | None, namespace: str, now: float, grace: float = GRACE
) -> Sweep:
    """Decide about one object.

    :param fate: of its task, asked after the object was seen; ``None`` if it names no task.
    :param namespace: the id of this Airflow.
    :param now: epoch seconds by the server's clock.
    """
    if one.installation != installation_label(namespace):
        return Sweep(False, "it is of another Airflow")
    if one.deleted is not None:
        stuck = now - one.deleted > _STUCK
        why = f" for {in_words(now - one.deleted)}; look at its finalizers" if stuck else ""
        return Sweep(False, f"it is being deleted{why}")
    if now - one.created < grace:
        return Sweep(False, f"it is younger than {in_words(grace)}")
    if one.kind == "Secret":
        return Sweep(True, "its RayJob is gone")
    if one.task is None or one.task.namespace != namespace or fate is None:
        return Sweep(False, "its annotations do not name a task of this Airflow")
    if not fate.known or (fate.exists and not fate.over):
        return Sweep(False, fate.shown)
    if one.shared and fate.run_active and one.status not in TERMINAL:
        return Sweep(False, "tasks share it, and its DAG run is not over")
    if one.status in TERMINAL:
        if one.expires is not None and now < one.expires + grace:
            return Sweep(False, "it has ended, and its logs are kept for a while")
        return Sweep(True, f"it has ended, and {fate.shown}")
    if one.ends is not None and now < one.ends + grace and (one.ends - now < grace or not fate.exists):
        # A kill has shortened its deadline, and its job may still write rows; or its run is another one's.
        return Sweep(False, f"{fate.shown}, and KubeRay ends it in {in_words(max(0.0, one.ends - now))}")
    if one.unfollowed and fate.state == "success":
        return Sweep(False, "its task does not wait for its job, and KubeRay ends it after that")
    if not fate.exists and one.ends is None:
        # Of a copy of this Airflow, maybe, which has the same id and other runs.
        return Sweep(False, f"{fate.shown}; if no Airflow has it, delete it by hand")
    return Sweep(True, fate.shown)


def leftover_of(manifest: Mapping[str, Any], kind: LeftKind) -> Leftover:
    """Read an object as the API server returned it; of a Secret, its metadata alone."""
    metadata = manifest["metadata"]
    spec, status = (
        ({}, {}) if kind == "Secret" else (manifest.get("spec") or {}, manifest.get("status") or {})
    )
    deployment = status.get("jobDeploymentStatus") or "" if kind == "RayJob" else ""
    finished, ttl = epoch(status.get("endTime")), spec.get("ttlSecondsAfterFinished")
    of_cluster = status if kind == "RayCluster" else status.get("rayClusterStatus") or {}
    return Leftover(
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        created=epoch(metadata["creationTimestamp"]) or 0.0,
        installation=(metadata.get("labels") or {}).get(INSTALLATION, ""),
        task=_task(metadata),
        status=deployment,
        ends=_ends(deployment, spec, status) if kind == "RayJob" else None,
        expires=None if finished is None else finished + (ttl or 0),
        deleted=epoch(metadata.get("deletionTimestamp")),
        gpus=str(of_cluster.get("desiredGPU") or ""),
        unfollowed=kind == "RayJob" and spec.get("activeDeadlineSeconds") == FOR_EVER,
        shared=SHARED in (metadata.get("annotations") or {}),
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


@dataclass(frozen=True)
class FoundObjects:
    """What carries the label of any Airflow in a namespace.

    :param namespace: of Kubernetes.
    :param objects: RayJobs, and the RayClusters and Secrets whose RayJob is gone.
    :param now: epoch seconds by the server's clock.
    :param unseen: kinds that the Role does not let list.
    """

    namespace: str
    objects: tuple[Leftover, ...]
    now: float
    unseen: tuple[LeftKind, ...] = ()

    @property
    def unseen_sentence(self) -> str:
        """What was not looked at, for people; empty if all was."""
        if not self.unseen:
            return ""
        kinds = " and ".join(f"{kind}s" for kind in self.unseen)
        return (
            f"{kinds} without a RayJob were not looked for, since the Role does not let list them; "
            "Kubernetes collects them by itself, unless their owner was taken from them."
        )


async def find_left(api: KubernetesApi) -> FoundObjects:
    """List what this package has made.

    RayClusters and Secrets without their RayJob are found only if the Role lets list them, too; Kubernetes
    collects both by itself, unless their owner was taken from them.

    :raises ClusterError: RayJobs can't be listed.
    """
    unseen: list[LeftKind] = []
    # Before the RayJobs: one that is made meanwhile must not have its Secret taken for a leak.
    clusters = await _listed(api, "RayCluster", unseen)
    secrets = await _listed(api, "Secret", unseen)
    rayjobs = await api.list("RayJob", labels=INSTALLATION)
    uids = {one["metadata"]["uid"] for one in rayjobs}
    names = {one["metadata"]["name"] for one in rayjobs}
    objects = [leftover_of(one, "RayJob") for one in rayjobs]
    objects += [leftover_of(one, "RayCluster") for one in clusters if _is_left(one, uids, names)]
    objects += [leftover_of(one, "Secret") for one in secrets if _is_left(one, uids, names)]
    objects.sort(key=lambda one: one.created)
    return FoundObjects(api.namespace, tuple(objects), api.now(), tuple(unseen))


async def delete_left(
    api: KubernetesApi, objects: Iterable[Leftover]
) -> tuple[Sequence[Leftover], Sequence[str]]:
    """Delete these very objects.

    :return: those that were still there, and a sentence for each that may not be deleted.
    """
    deleted, refused = [], []
    for one in objects:
        try:
            if await api.delete(one.kind, one.name, uid=one.uid):
                deleted.append(one)
        except ChangedObjectError:
            continue  # another object has its name now
        except ForbiddenError as error:
            refused.append(str(error))
    return deleted, refused


async def _listed(api: KubernetesApi, kind: LeftKind, unseen: list[LeftKind]) -> list[Manifest]:
    try:
        return await api.list(kind, labels=INSTALLATION)
    except ForbiddenError:
        unseen.append(kind)
        return []


def _is_left(manifest: Manifest, uids: set[str], names: set[str]) -> bool:
    """Whether the RayJob of an object is gone; without an owner, its name says whose it was."""
    metadata = manifest["metadata"]
    owners = [one["uid"] for one in metadata.get("ownerReferences") or () if one.get("kind") == "RayJob"]
    return not uids & set(owners) if owners else metadata["name"].rpartition("-")[0] not in names
