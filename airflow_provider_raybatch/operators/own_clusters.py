# SPDX-License-Identifier: Apache-2.0
"""An attempt's part in a cluster that is made for its job: how long it lives, and when it is given up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.errors import StaleStateError
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.submission import STOP_GRACE
from airflow_provider_raybatch.operators.plan import DEFERRAL_GRACE, JobPlan, TaskRun
from airflow_provider_raybatch.places.place import LEFT_AFTER_POLL
from airflow_provider_raybatch.places.providers import ClusterDefinition, provider

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.places.place import NotReadyYet

_MARGIN = 1800.0
"""Seconds beyond what a job or the pause before a retry may take, so that only an orphan meets the bound."""
_WITHOUT_LEASE = 7 * 86400.0
"""Seconds without a follower for a job that never ends for the lack of one."""


def with_window(plan: JobPlan, run: TaskRun, pause: float, *, waits: bool) -> JobPlan:
    """The plan with how long a cluster of its own may live without a follower.

    Until the job's deadline, where it has one; else until the job would end itself, or a retry has begun.

    :param pause: seconds before a retry, at most.
    :param waits: whether the task waits for its job. If not, the cluster ends with the job alone.
    """
    if not waits:
        return replace(plan, window=None)
    deadline = plan.followers_deadline(run.deadline.earlier)
    if deadline is not None:
        return replace(plan, window=max(0.0, deadline - time.time()) + STOP_GRACE + _MARGIN)
    terms = None if plan.lease_terms is None else plan.lease_terms("")
    alone = LimitArguments().orphan_timeout if terms is None else terms.orphan_timeout or _WITHOUT_LEASE
    return replace(plan, window=(max(alone, pause) + _MARGIN) / LEFT_AFTER_POLL)


def give_up(run: TaskRun, error: Exception, uid: str | None, log: Log, *, is_last: bool) -> None:
    """Delete the cluster of a job that could not be submitted, unless the next attempt takes it.

    :param uid: see :meth:`Place.release_run`.
    :param is_last: whether no attempt follows.
    """
    if isinstance(error, StaleStateError) or not (is_last or spoils(error)):
        return
    release(run, uid, log, ended=False)


def spoils(error: Exception) -> bool:
    """Whether a cluster that has no job yet is of no use to a retry."""
    unreachable = FailureClass.CLUSTER_UNREACHABLE
    return isinstance(error, RaybatchError) and error.failure_class is not unreachable


def release(run: TaskRun, uid: str | None, log: Log, *, ended: bool = True) -> None:
    """Delete the cluster of a job, see :meth:`Place.release_run`; an error is only logged."""
    try:
        run_blocking(run.place.release_run(run.id, log, uid, ended=ended))
    except RaybatchError as error:
        log.warning("The cluster could not be deleted, so it ends itself after its job: %s", error)


def uid_of(handle: Mapping[str, Any]) -> str | None:
    """The `uid` of the cluster that was made for a job; ``None`` where there is none."""
    made = handle.get("ray_cluster") or {}
    return (made.get("claim") or {}).get("uid")


def is_over(outcome: Outcome) -> bool:
    """Whether nothing runs on a job's cluster any more."""
    return outcome.saw_the_end or outcome.state == "timeout"


def deferral(
    waiting: NotReadyYet, run: TaskRun, definition: ClusterDefinition, *, cancel_on_kill: bool
) -> tuple[BaseTrigger, timedelta]:
    """The trigger that waits for a cluster, and how long Airflow waits for it."""
    handle = {
        "submission_id": waiting.submission_id,
        "run_token": run.run_token,
        "ray_cluster": waiting.cluster.facts,
    }
    trigger = provider(definition.provider).ready_trigger(waiting, handle, cancel_on_kill)
    return trigger, timedelta(seconds=waiting.cluster_wait + DEFERRAL_GRACE)
