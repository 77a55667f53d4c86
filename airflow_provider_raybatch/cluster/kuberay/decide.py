# SPDX-License-Identifier: Apache-2.0
"""Decide which of a run's clusters counts, and whether its Ray job does. Pure, without a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo
from airflow_provider_raybatch.cluster.kuberay.rayjob import RayJobState
from airflow_provider_raybatch.cluster.submit.resolve import Action, Resolution, by_arguments, decide
from airflow_provider_raybatch.contract.submission import OnStaleState

FIRST_CLUSTER = "the first cluster of this run"


@dataclass(frozen=True)
class ClusterDecision:
    """What to do about the clusters of a run.

    `SUBMIT` creates a RayJob of this `number`; `ADOPT` takes `latest`; `REPLACE` deletes `latest`, and
    decides again once it is gone; `WAIT` waits until `latest` is gone; `FAIL` leaves everything as it is.

    :param reason: a clause for the log.
    :param latest: the RayJob of the highest number.
    :param number: of the next RayJob.
    :param superseded: RayJobs of lower numbers, which no attempt uses any more: they must be gone before a
        job is submitted.
    :param foreign: whether `latest` can't be proven to be the run's.
    """

    action: Action
    reason: str
    latest: RayJobState | None
    number: int
    superseded: tuple[RayJobState, ...] = ()
    foreign: bool = False


def decide_cluster(
    found: Sequence[RayJobState],
    *,
    run_token: str,
    fingerprint: str,
    on_stale_state: OnStaleState = "replace",
    finished: bool = False,
    least: int = 0,
) -> ClusterDecision:
    """Decide what to do about the RayJobs that carry the label of a run.

    :param fingerprint: of the arguments that are to run now.
    :param finished: whether the RayJob of the highest number has ended, and the result of its job stands.
    :param least: number that the next RayJob has at least, as earlier ones have been deleted already.
    """
    for one in found:
        if (one.run_token != run_token or one.number < 0) and not one.terminal:
            reason = f"RayJob {one.name} has this run's label, but not its annotations"
            action = Action.WAIT if one.deleting else Action.FAIL
            return ClusterDecision(action, reason, one, least, foreign=True)
    own = sorted((one for one in found if one.run_token == run_token), key=lambda one: one.number)
    latest = own[-1] if own else None
    number = least if latest is None else max(least, latest.number + 1)
    decision = _decide_latest(latest, fingerprint, on_stale_state, finished)
    return ClusterDecision(decision.action, decision.reason, latest, number, tuple(own[:-1]))


def _decide_latest(
    latest: RayJobState | None, fingerprint: str, on_stale_state: OnStaleState, finished: bool
) -> Resolution:
    if latest is None:
        return Resolution(Action.SUBMIT, FIRST_CLUSTER)
    name = f"RayJob {latest.name}"
    if latest.deleting:
        return Resolution(Action.WAIT, f"{name} is being deleted")
    if latest.terminal and not finished:
        why = latest.reason or latest.job_status
        status = latest.deployment_status + (f", {why}" if why else "")
        return Resolution(Action.REPLACE, f"{name} of this run has ended ({status})")
    if latest.suspended and latest.job_id and not latest.terminal:
        return Resolution(Action.REPLACE, f"{name} was suspended, which ended its job {latest.job_id}")
    found = f"{name} of this run {'has finished' if latest.terminal else 'is there'}"
    return by_arguments(found, latest.fingerprint == fingerprint, on_stale_state, Action.REPLACE)


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
