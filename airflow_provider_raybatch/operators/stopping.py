# SPDX-License-Identifier: Apache-2.0
"""Stop jobs that earlier runs and attempts of the task left, and that no attempt will adopt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.contract.failures import RaybatchError

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.loop import Log
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
    from airflow_provider_raybatch.hooks.connection import RayConnection
    from airflow_provider_raybatch.operators.plan import TaskRun


def stop_earlier_runs(address: ClusterAddress, run: TaskRun, keep: str, log: Log) -> bool:
    """Stop the jobs of earlier runs: those on record, or all jobs of the task if the record is lost.

    :param keep: submission id of this run's job.
    :return: whether all of them have ended; otherwise a warning is logged.
    """
    try:
        stopped = run_blocking(_stop_earlier(address, run, keep))
    except RaybatchError as error:
        log.warning("A job of an earlier run of this task may still be there: %s", error)
        return False
    if stopped:
        log.info("Stopped what an earlier run of this task left: %s.", ", ".join(stopped))
    return True


async def _stop_earlier(address: ClusterAddress, run: TaskRun, keep: str) -> list[str]:
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.submit.resolve import stop_older, stop_run

    async with RayJobsClient(address) as client:
        if run.record.earlier is None:
            return await stop_older(client, run.task.digest, keep)
        stopped = [await stop_run(client, run.key_of(token)) for token in run.record.earlier]
        return [submission_id for submission_id in stopped if submission_id is not None]


def stop_jobs_of_run(connection: RayConnection, key: SubmissionKey, log: Log) -> None:
    """Stop the jobs of a run whose last attempt takes none over.

    :raises RaybatchError: the cluster can't be asked.
    """
    from airflow_provider_raybatch.cluster.follow.loop import stop_jobs_of

    if connection.embedded:
        return  # what it ran ended with its attempt
    stopped = run_blocking(stop_jobs_of(connection.address(), key))
    log.info("Stopped: %s.", ", ".join(stopped) or "nothing was running")
