# SPDX-License-Identifier: Apache-2.0
"""A run's Ray job on a cluster of its own: claim, wait, submit, attach; the next cluster if it is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus
from airflow_provider_raybatch.cluster.submit.resolve import (
    FINGERPRINT,
    RUN_TOKEN,
    Action,
    Resolution,
    SubmissionKey,
    Submitted,
    decide,
    has_result,
    post,
    stale,
)
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.errors import ClusterOverError, KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.kuberay.claim import ClaimResult, ClusterPlan, claim_cluster
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import attach, delete, ray_cluster, state
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, RayJobState

_MOST_CLUSTERS = 3
_MOST_ROUNDS = 3


@dataclass(frozen=True)
class OnCluster:
    """A run's Ray job and its cluster."""

    claimed: ClaimResult
    submitted: Submitted


async def submit_on_own_cluster(
    api: KubernetesClient,
    key: SubmissionKey,
    plan: ClusterPlan,
    connect: Callable[[ClaimResult], AbstractAsyncContextManager[RayJobsClient | None]],
    build: Callable[[RayJobsClient, str], Awaitable[JobRequest]],
    finished: Callable[[RayJobsClient, JobInfo], Awaitable[bool]] | None = None,
    *,
    followed: bool = True,
) -> OnCluster:
    """Return the one job of this run on the one cluster of this run; makes what is not there.

    A cluster has exactly one job, of the cluster's own number. If that job is over without a result, or lost
    because the head has restarted, the cluster is deleted and the next one is made.

    :param connect: waits until a claimed cluster takes jobs, and raises if it can't; gives ``None`` where
        its job has succeeded, and the cluster may be gone.
    :param build: makes the request of a submission id, if one is to be submitted.
    :param finished: whether the result of a job that has ended stands; by default, if Ray says it succeeded.
    :param followed: whether a follower looks at the job, and so attaches it where that fails here.
    :raises ClusterOverError: several clusters in a row were lost.
    """
    job = _Job(api, key, plan, build, finished, followed)
    least = 0
    for attempt in range(1, _MOST_CLUSTERS + 1):
        claimed = await claim_cluster(api, key, plan, least=least)
        try:
            async with connect(claimed) as client:
                if client is None:
                    info = JobInfo(key.submission_id(claimed.claim.number), JobStatus.SUCCEEDED)
                    submitted = Submitted(info.submission_id, True, None, info, claimed.reason)
                else:
                    submitted = await job.submitted(client, claimed.claim)
            return OnCluster(claimed, submitted)
        except ClusterOverError:
            await delete(api, claimed.claim)  # the next claim waits until it is gone
            least = claimed.claim.number + 1
            if attempt == _MOST_CLUSTERS:
                raise
    raise AssertionError


@dataclass(frozen=True)
class _Job:
    """See :func:`submit_on_own_cluster`."""

    api: KubernetesClient
    key: SubmissionKey
    plan: ClusterPlan
    build: Callable[[RayJobsClient, str], Awaitable[JobRequest]]
    finished: Callable[[RayJobsClient, JobInfo], Awaitable[bool]] | None
    followed: bool

    async def submitted(self, client: RayJobsClient, claim: ClusterClaim) -> Submitted:
        """The one job of a claimed cluster, which KubeRay follows."""
        rayjob = await state(self.api, claim)
        if rayjob is None or rayjob.deleting:
            raise ClusterOverError(f"RayJob {claim.name} was deleted before its job was submitted.")
        try:
            submitted = await self._found_or_posted(client, rayjob)
        except ClusterUnreachableError:
            # KubeRay makes no new RayCluster for a RayJob that waits for its job.
            if rayjob.deployment_status == "Waiting" and await ray_cluster(self.api, claim) is None:
                raise ClusterOverError(f"The RayCluster of RayJob {rayjob.name} was deleted.") from None
            raise
        if rayjob.living:
            try:
                kept = await attach(self.api, claim, submitted.submission_id)
            except KubernetesUnreachableError:
                if not self.followed:
                    raise  # KubeRay would end it as one without a job; a retry attaches it
                return submitted  # a look of the follower attaches it
            if kept is None:
                raise ClusterOverError(f"RayJob {claim.name} was deleted while its job was submitted.")
        return submitted

    async def _found_or_posted(self, client: RayJobsClient, rayjob: RayJobState) -> Submitted:
        """As :func:`submit_or_adopt`, but of the cluster's number alone.

        :raises StaleStateError: there is a job with other arguments and `on_stale_state` is ``fail``.
        :raises ClusterOverError: the job is over without a result, lost, or has other arguments.
        """
        key, plan = self.key, self.plan
        session_name = (await client.version()).session_name
        submission_id = key.submission_id(rayjob.number)
        finished = None if self.finished is None else partial(self.finished, client)
        info = await client.info(submission_id)
        for _ in range(_MOST_ROUNDS):
            decision = decide_job(
                info,
                submission_id,
                attached=bool(rayjob.job_id),
                run_token=key.run_token,
                fingerprint=plan.fingerprint,
                on_stale_state=plan.on_stale_state,
                finished=info is not None and await has_result(info, finished),
            )
            if decision.action is Action.FAIL:
                raise stale(decision)
            if decision.action is Action.REPLACE:
                break
            if info is not None and decision.action is Action.ADOPT:
                return Submitted(submission_id, True, session_name, info, decision.reason)
            info = await post(client, await self.build(client, submission_id), key, plan.fingerprint)
            told = info.metadata.get(RUN_TOKEN), info.metadata.get(FINGERPRINT)
            if told == (key.run_token, plan.fingerprint):  # also where it has ended: its follower tells how
                return Submitted(submission_id, False, session_name, info, decision.reason)
        raise ClusterOverError(f"{decision.reason[:1].upper()}{decision.reason[1:]}.")


def decide_job(
    job: JobInfo | None,
    submission_id: str,
    *,
    attached: bool,
    run_token: str,
    fingerprint: str,
    on_stale_state: OnStaleState = "replace",
    finished: bool = False,
) -> Resolution:
    """Decide what to do about the Ray job of a claimed cluster, which has exactly one.

    `REPLACE` means that the cluster's only job is over or lost: the cluster is released, and the next one is
    created.

    :param job: what the cluster says of `submission_id`; ``None`` if it knows no such job.
    :param attached: whether the RayJob has the job's id, so that the job was there.
    :param finished: whether the result of a job that has ended stands.
    """
    if job is None and attached:
        return Resolution(Action.REPLACE, f"job {submission_id} is lost, as its head has restarted")
    decision = decide(
        job,
        run_token=run_token,
        fingerprint=fingerprint,
        on_stale_state=on_stale_state,
        finished=finished,
    )
    if job is not None and decision.action is Action.SUBMIT:
        return Resolution(Action.REPLACE, decision.reason)
    return decision
