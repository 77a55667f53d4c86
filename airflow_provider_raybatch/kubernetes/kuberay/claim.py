# SPDX-License-Identifier: Apache-2.0
"""Exactly one cluster for a run, even after crashes: to create its RayJob is the claim.

Kubernetes creates a name at most once, so two processes that want number k of a run share one RayJob. Whoever
has created one lists again before it is used: of two processes that created different numbers at once, at
least one sees the other's RayJob. The highest number counts, and all lower ones are gone before a job starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, UserClusterError
from airflow_provider_raybatch.cluster.submit.resolve import (
    Action,
    Resolution,
    SubmissionKey,
    by_arguments,
    seen_to_its_end,
    stale,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient, Manifest
from airflow_provider_raybatch.kubernetes.api.errors import (
    InvalidObjectError,
    KubernetesUnreachableError,
    ObjectExistsError,
)
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import (
    RELEASE_TIMEOUT,
    asked,
    claim_of,
    clusters_of_run,
    delete,
    gone,
    renew,
)
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import ClusterClaim, RayJobState, rayjob_state

FIRST_CLUSTER = "the first cluster of this run"
_MOST_ROUNDS = 12
_MOST_UNANSWERED = 4
_WAIT = 1.0
_PRE_RUNNING = "preRunningDeadlineSeconds"


@dataclass(frozen=True)
class ClaimResult:
    """The cluster that counts from here on.

    :param adopted: whether it was there already.
    :param state: its RayJob as it was created or found; terminal where the result of its job stands.
    :param reason: why, as a clause for the log.
    """

    claim: ClusterClaim
    adopted: bool
    state: RayJobState
    reason: str

    @property
    def sentence(self) -> str:
        """For the log."""
        verb = "Found" if self.adopted else "Created"
        return f"{verb} RayJob {self.claim.name} in namespace {self.claim.namespace} ({self.reason})."


@dataclass(frozen=True)
class ClusterPlan:
    """What a run wants of its cluster.

    :param manifest_of: makes the RayJob of a number, right before it is created; may raise where the run is
        over.
    :param secret_of: makes the Secret with the token of a claimed cluster.
    :param finished: whether the result of the job of an ended RayJob stands; by default, none does.
    :param window: seconds that a cluster may live without a look of a follower, for :func:`renew`.
    :param pre_running_deadline: the one in the manifest, in seconds; an adopted cluster gets it again.
    :param idle: seconds that a ready cluster may wait for its job after it was adopted.
    :param end_job: stops the Ray job of a cluster that is to be replaced, so that it keeps its rows; bounded.
    """

    fingerprint: str
    manifest_of: Callable[[int], Manifest]
    secret_of: Callable[[ClusterClaim], Manifest]
    window: float
    pre_running_deadline: int
    idle: float
    on_stale_state: OnStaleState = "replace"
    finished: Callable[[RayJobState], Awaitable[bool]] | None = None
    end_job: Callable[[RayJobState], Awaitable[None]] | None = None


async def claim_cluster(
    api: KubernetesClient,
    key: SubmissionKey,
    plan: ClusterPlan,
    *,
    least: int = 0,
    timeout: float = RELEASE_TIMEOUT,  # noqa: ASYNC109 - a loop that tells why it gave up
) -> ClaimResult:
    """Return the one cluster of this run: the existing one, or a new one. Its Secret is there, too.

    :param least: number of a new cluster at least, where earlier ones of this run are known to be over.
    :param timeout: seconds that each RayJob has to go, which is replaced or being deleted.
    :raises StaleStateError: there is a cluster for other arguments and `on_stale_state` is ``fail``.
    :raises UserClusterError: a RayJob with the run's label or name is not the run's, or KubeRay does not know
        the deadline of a cluster without a job.
    :raises ClusterError: a RayJob does not go, with the class ``stalled``.
    """
    reason, unanswered = "", 0
    for attempt in range(_MOST_ROUNDS):
        if attempt:
            await asyncio.sleep(_WAIT)
        decision = await _decided(api, key, plan, least)
        reason = reason or decision.reason
        latest = decision.latest
        if decision.action is Action.FAIL:
            raise _refusal(decision)
        if latest is not None and decision.action in {Action.WAIT, Action.REPLACE}:
            await _end(api, plan, decision, latest, timeout)
            least = max(least, latest.number + 1)
            continue
        if latest is not None and decision.action is Action.ADOPT:
            state = await _adopted(api, plan, decision, latest, timeout)
        else:
            try:
                state = await _created(api, key, plan, decision.number, timeout)
            except KubernetesUnreachableError:
                unanswered += 1
                if unanswered == _MOST_UNANSWERED:
                    raise
                continue  # the RayJob may be there, or come yet: decide again
        if state is not None:
            adopted = decision.action is Action.ADOPT
            return ClaimResult(claim_of(api, state), adopted, state, reason)
    raise ClusterError(
        f"Another process keeps replacing the cluster of {key.task}; make sure that only one runs."
    )


async def _decided(
    api: KubernetesClient, key: SubmissionKey, plan: ClusterPlan, least: int
) -> ClusterDecision:
    found = await clusters_of_run(api, key)
    own = [one for one in found if one.run_token == key.run_token]
    highest = max(own, key=lambda one: one.number, default=None)
    finished = False
    if highest is not None and highest.terminal and not highest.deleting and plan.finished is not None:
        finished = await plan.finished(highest)
    return decide_cluster(
        found,
        run_token=key.run_token,
        fingerprint=plan.fingerprint,
        on_stale_state=plan.on_stale_state,
        finished=finished,
        least=least,
    )


def _refusal(decision: ClusterDecision) -> ClusterError:
    if decision.foreign:
        return UserClusterError(f"{decision.reason}; delete it, and clear the task.")
    return stale(Resolution(decision.action, decision.reason))


async def _end(
    api: KubernetesClient, plan: ClusterPlan, decision: ClusterDecision, latest: RayJobState, seconds: float
) -> None:
    if decision.action is Action.REPLACE:
        if plan.end_job is not None and latest.may_run_job:
            await plan.end_job(latest)
        await delete(api, claim_of(api, latest))
    await _wait_until_gone(api, [latest], seconds)


async def _adopted(
    api: KubernetesClient, plan: ClusterPlan, decision: ClusterDecision, latest: RayJobState, seconds: float
) -> RayJobState | None:
    """Take a RayJob that is there; ``None`` if it has gone meanwhile."""
    await _remove(api, decision.superseded, seconds)
    if not latest.living:
        return latest
    await _ensure_secret(api, plan, latest)
    # A kill in doubt may have shortened both deadlines.
    return await renew(
        api,
        claim_of(api, latest),
        plan.window,
        pre_running=plan.pre_running_deadline,
        idle=plan.idle,
    )


async def _created(
    api: KubernetesClient, key: SubmissionKey, plan: ClusterPlan, number: int, seconds: float
) -> RayJobState | None:
    """Create a RayJob; ``None`` if another process was first, or has gone on to a higher number."""
    manifest = plan.manifest_of(number)
    try:
        made = rayjob_state(await seen_to_its_end(api.create(manifest)))
    except ObjectExistsError:
        await _check_own(api, key, str(manifest["metadata"]["name"]))
        return None
    except InvalidObjectError as error:
        if "unknown field" in str(error) and _PRE_RUNNING in str(error):
            raise _old(api) from error
        raise
    claim = claim_of(api, made)
    if made.pre_running_deadline is None:
        await delete(api, claim)
        raise _old(api)
    found = [one for one in await clusters_of_run(api, key) if one.run_token == key.run_token]
    if any(one.number > number for one in found):
        await delete(api, claim)  # it never had a job
        return None
    await _remove(api, [one for one in found if one.number < number], seconds)
    try:
        await _ensure_secret(api, plan, made)
    except KubernetesUnreachableError:
        raise  # a retry adopts it
    except ClusterError:
        with contextlib.suppress(ClusterError):
            await delete(api, claim)
        raise
    return made


async def _check_own(api: KubernetesClient, key: SubmissionKey, name: str) -> None:
    found = await asked(lambda: api.get("RayJob", name))
    if found is not None and rayjob_state(found).run_token != key.run_token:
        raise UserClusterError(
            f"RayJob {name} in namespace {api.namespace} has the name of a cluster of {key.task}, but not "
            "its annotations; delete it, and clear the task."
        )


async def _ensure_secret(api: KubernetesClient, plan: ClusterPlan, rayjob: RayJobState) -> None:
    if rayjob.secret:
        manifest = plan.secret_of(claim_of(api, rayjob))
        with contextlib.suppress(ObjectExistsError):
            await asked(lambda: seen_to_its_end(api.create(manifest)))


async def _remove(api: KubernetesClient, rayjobs: Sequence[RayJobState], seconds: float) -> None:
    for one in rayjobs:
        await delete(api, claim_of(api, one))
    await _wait_until_gone(api, rayjobs, seconds)


async def _wait_until_gone(api: KubernetesClient, rayjobs: Sequence[RayJobState], seconds: float) -> None:
    """Wait for them, since their Ray jobs may run as long as they are there."""
    for one in rayjobs:
        if (left := await gone(api, claim_of(api, one), seconds)) is not None:
            raise ClusterError(f"{left}, {seconds:.0f} s after it was deleted.", FailureClass.STALLED)


def _old(api: KubernetesClient) -> UserClusterError:
    return UserClusterError(
        f"KubeRay of namespace {api.namespace} does not know {_PRE_RUNNING}, without which a cluster could "
        "stay for ever; install KubeRay 1.6 or newer with its CRDs."
    )


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
