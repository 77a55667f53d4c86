# SPDX-License-Identifier: Apache-2.0
"""What is done with the RayJob of a run: attach its Ray job, extend or shorten its deadlines, release it.

Each change names the object's `uid`, so that it never meets another RayJob of the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey, seen_to_its_end
from airflow_provider_raybatch.contract.submission import run_number
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.errors import ChangedObjectError, KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import (
    FOR_EVER,
    ClusterClaim,
    RayJobState,
    of_run,
    of_task,
    rayjob_state,
)
from airflow_provider_raybatch.places.place import LEFT_AFTER_POLL

Answer = TypeVar("Answer")

RELEASE_TIMEOUT = 120.0
"""Seconds in which a deleted RayJob and its RayCluster should be gone."""
OF_RAYJOB = "ray.io/originated-from-cr-name"
"""KubeRay's label on a RayCluster: name of the RayJob that owns it."""

_ATTEMPTS = 4
_WAIT = 1.0


async def state(api: KubernetesClient, claim: ClusterClaim) -> RayJobState | None:
    """The claimed RayJob as it is now, ``None`` once it is gone."""
    found = await asked(lambda: api.get("RayJob", claim.name))
    return None if found is None or found["metadata"]["uid"] != claim.uid else rayjob_state(found)


async def attach(api: KubernetesClient, claim: ClusterClaim, submission_id: str) -> RayJobState | None:
    """Tell KubeRay which Ray job to follow: it ends the cluster after that job. May be repeated.

    :return: the RayJob, ``None`` if it is gone.
    """
    return await _patched(api, claim, {"jobId": submission_id})


async def renew(
    api: KubernetesClient,
    claim: ClusterClaim,
    window: float,
    submission_id: str | None = None,
    *,
    pre_running: int = 0,
    idle: float | None = None,
) -> RayJobState | None:
    """Extend the cluster's deadlines while a follower looks; one GET, and seldom a PATCH.

    :param window: seconds that the cluster may live from now on without another look: until the task's
        deadline where it has one.
    :param submission_id: the Ray job, which is attached if an earlier try has failed.
    :param pre_running: `preRunningDeadlineSeconds` that the RayJob has at least.
    :param idle: seconds that a ready cluster may live from now on without a job; by default `window`.
    :return: the RayJob, ``None`` if it is gone.
    """
    now_is = await state(api, claim)
    if now_is is None or not now_is.living:
        return now_is
    change: dict[str, Any] = extension(now_is, api.now(), window, idle)
    if not now_is.job_id and (now_is.pre_running_deadline or 0) < pre_running:
        change.setdefault("preRunningDeadlineSeconds", pre_running)
    if submission_id is not None and not now_is.job_id:
        change["jobId"] = submission_id
    return await _patched(api, claim, change) if change else now_is


def extension(rayjob: RayJobState, now: float, window: float, idle: float | None = None) -> dict[str, int]:
    """The deadlines to patch: none while at least two thirds of the window are left. Pure.

    KubeRay checks `preRunningDeadlineSeconds` also while a cluster that is ready waits for its job.

    :param now: epoch seconds by the server's clock.
    :param idle: see :func:`renew`.
    """
    if rayjob.suspended:  # the next start begins both deadlines anew
        longest = _whole_seconds(window)
        return {"activeDeadlineSeconds": longest} if (rayjob.active_deadline or FOR_EVER) > longest else {}
    if rayjob.started is None:
        return {}
    spent = now - rayjob.started
    deadlines = {"activeDeadlineSeconds": (rayjob.active_deadline, window)}
    if rayjob.deployment_status == "Waiting":
        most = window if idle is None or rayjob.job_id else idle
        deadlines["preRunningDeadlineSeconds"] = (rayjob.pre_running_deadline, most)
    return {
        field: _whole_seconds(spent + most)
        for field, (seconds, most) in deadlines.items()
        if seconds is None or seconds - spent < most * LEFT_AFTER_POLL
    }


async def bound(
    api: KubernetesClient, claim: ClusterClaim, seconds: float, known: RayJobState | None = None
) -> RayJobState | None:
    """Let KubeRay end the cluster in `seconds` at the latest, even if this process dies at once.

    :param known: the RayJob's state as it was lately, which saves a GET.
    :return: the RayJob, ``None`` if it is gone.
    """
    now_is = known or await state(api, claim)
    if now_is is None or not now_is.living:
        return now_is
    change = shortening(now_is, api.now(), seconds)
    return await _patched(api, claim, change) if change else now_is


def shortening(rayjob: RayJobState, now: float, seconds: float) -> dict[str, int]:
    """The deadlines to patch, so that none is more than `seconds` away. Pure.

    Never below one second: KubeRay takes an invalid deadline for a failed validation, and keeps the cluster.
    """
    spent = 0.0 if rayjob.started is None else now - rayjob.started
    ends = _whole_seconds(spent + seconds)
    deadlines = {
        "activeDeadlineSeconds": rayjob.active_deadline,
        "preRunningDeadlineSeconds": rayjob.pre_running_deadline,
    }
    return {field: ends for field, before in deadlines.items() if before is None or before > ends}


async def release(
    api: KubernetesClient,
    claim: ClusterClaim,
    timeout: float = RELEASE_TIMEOUT,  # noqa: ASYNC109 - a loop that tells what is left
) -> str | None:
    """Delete the cluster and wait until RayJob and RayCluster are gone; Kubernetes deletes the owned Secret.

    :param timeout: seconds.
    :return: ``None`` if they are gone, else a clause for the log: what is still there.
    """
    await delete(api, claim)
    return await gone(api, claim, timeout)


async def delete(api: KubernetesClient, claim: ClusterClaim) -> None:
    """Delete the RayJob, if it is still there, without a wait: Kubernetes goes on without this process."""
    with contextlib.suppress(ChangedObjectError):  # of this name there is another one
        await asked(lambda: seen_to_its_end(api.delete("RayJob", claim.name, uid=claim.uid)))


async def gone(
    api: KubernetesClient,
    claim: ClusterClaim,
    timeout: float = RELEASE_TIMEOUT,  # noqa: ASYNC109 - a loop that tells what is left
) -> str | None:
    """Wait until a deleted RayJob and its RayCluster are gone; returns as :func:`release`."""
    deadline = time.monotonic() + timeout
    while True:
        left = await _left(api, claim)
        if left is None or time.monotonic() >= deadline:
            return left
        await asyncio.sleep(min(_WAIT, timeout))


async def _left(api: KubernetesClient, claim: ClusterClaim) -> str | None:
    if await state(api, claim) is not None:
        return f"RayJob {claim.name} is still being deleted; see whether KubeRay's operator runs"
    cluster = await ray_cluster(api, claim)
    return None if cluster is None else f"RayCluster {cluster} is still being deleted"


async def ray_cluster(api: KubernetesClient, claim: ClusterClaim) -> str | None:
    """Name of the RayCluster that KubeRay has made for a RayJob, ``None`` if there is none."""
    for one in await asked(lambda: api.list("RayCluster", labels=f"{OF_RAYJOB}={claim.name}")):
        if any(owner.get("uid") == claim.uid for owner in one["metadata"].get("ownerReferences") or ()):
            return str(one["metadata"]["name"])
    return None


async def clusters_of_run(api: KubernetesClient, key: SubmissionKey) -> list[RayJobState]:
    """The RayJobs of a run, in no order."""
    return [rayjob_state(one) for one in await asked(lambda: api.list("RayJob", labels=of_run(key)))]


async def release_older(api: KubernetesClient, key: SubmissionKey, keep: RayJobState) -> list[str]:
    """Delete what earlier runs of the same task left behind, without a wait.

    :param key: of the present run.
    :param keep: the present run's RayJob. What was made later is never deleted, so that a late process can't
        end its successor's cluster.
    :return: names of the RayJobs.
    """
    found = [rayjob_state(one) for one in await asked(lambda: api.list("RayJob", labels=of_task(key)))]
    left = older(found, key.run_token, keep.created)
    for one in left:
        await delete(api, claim_of(api, one))
    return [one.name for one in left]


def older(found: Any, run_token: str, created: float) -> list[RayJobState]:
    """Those RayJobs of a task that surely belong to runs before the one of `run_token`. Pure.

    :param created: epoch seconds at which that run's own RayJob was created; decides where runs have the same
        number, as after a DAG run was deleted and made again.
    """
    present = (run_number(run_token), created)
    return [
        one
        for one in found
        if one.run_token not in {"", run_token}
        and not one.deleting
        and (run_number(one.run_token), one.created) < present
    ]


def claim_of(api: KubernetesClient, rayjob: RayJobState) -> ClusterClaim:
    """A RayJob as the claim of whoever holds it."""
    return ClusterClaim(api.namespace, rayjob.name, rayjob.uid, rayjob.number, rayjob.secret)


async def asked(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call that may be repeated, a few times, where the server gives no answer."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return await call()
        except KubernetesUnreachableError:
            await asyncio.sleep(_WAIT * attempt)
    return await call()


async def _patched(api: KubernetesClient, claim: ClusterClaim, spec: dict[str, Any]) -> RayJobState | None:
    change = {"metadata": {"uid": claim.uid}, "spec": spec}
    try:
        found = await asked(lambda: api.patch("RayJob", claim.name, change))
    except ChangedObjectError:
        return None  # of this name there is another one
    return None if found is None else rayjob_state(found)


def _whole_seconds(seconds: float) -> int:
    return max(1, min(FOR_EVER, math.ceil(seconds)))
