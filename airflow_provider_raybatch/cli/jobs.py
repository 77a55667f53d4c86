# SPDX-License-Identifier: Apache-2.0
"""``raybatch status`` and ``raybatch logs``: this package's jobs on the cluster of a connection."""

from __future__ import annotations

import datetime
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_provider_raybatch.cli.connection import address_of
from airflow_provider_raybatch.cli.printed import PRINTED, for_people
from airflow_provider_raybatch.cli.terminal import Row, print_rows
from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
from airflow_provider_raybatch.cluster.follow.poll import Followed
from airflow_provider_raybatch.cluster.follow.ray_lines import for_task_log
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo
from airflow_provider_raybatch.cluster.submit.resolve import TASK_KEY
from airflow_provider_raybatch.contract.durations import in_words
from airflow_provider_raybatch.contract.failures import RaybatchError, SpecError
from airflow_provider_raybatch.contract.text import clean, count_of

Answer = TypeVar("Answer")

_FIRST = ("submission_id", "state", "task", "duration", "start")
"""What a narrow table shows before other columns."""


def show_jobs(options: Namespace) -> None:
    """Print the jobs that tasks have on the cluster, the newest first."""
    if options.limit < 0:
        raise SpecError(f"limit: it must be 0, for all jobs, or more, but it is {options.limit}.")
    address = address_of(options.conn_id)
    jobs = [job for job in _ask(address, lambda client: client.jobs()) if TASK_KEY in job.metadata]
    jobs.sort(key=lambda job: job.start_time or 0, reverse=True)
    shown = jobs[: options.limit or None]
    print_rows(map(_row, shown), options.format, _FIRST, "submission_id")
    if options.format == "table":
        print(f"{len(shown):,} of {count_of(len(jobs), 'job')} at {address.shown}")


def show_log(options: Namespace) -> None:
    """Print the end of a job's log, or follow it."""
    if options.lines < 1:
        raise SpecError(f"lines: it must be at least 1, but it is {options.lines}.")
    address = address_of(options.conn_id)
    if options.follow:
        job = Followed(options.submission_id, poll_interval=2.0)
        outcome = run_blocking(follow_to_the_end(address, job, PRINTED))
        if outcome.failure_class is not None:
            raise RaybatchError(outcome.message, outcome.failure_class)
        return

    async def tail(client: RayJobsClient) -> tuple[JobInfo, list[str]] | None:
        info = await client.info(options.submission_id)
        return None if info is None else (info, (await client.log_tail(info, options.lines)).lines)

    found = _ask(address, tail)
    if found is None:
        raise SpecError(
            f"submission_id: {address.shown} knows no job {options.submission_id!r}; `raybatch status` lists "
            "those that it knows."
        )
    info, lines = found
    for line in lines:
        text = line if options.raw else for_task_log(line, batch=TASK_KEY in info.metadata)
        if text is not None:
            print(clean(text) if options.raw else for_people(text))


def _ask(address: ClusterAddress, question: Callable[[RayJobsClient], Awaitable[Answer]]) -> Answer:
    async def ask() -> Answer:
        async with RayJobsClient(address) as client:
            return await question(client)

    return run_blocking(ask())


def _row(job: JobInfo) -> Row:
    of_task = {name: job.metadata.get(f"raybatch.{name}", "") for name in ("dag_id", "task_id", "run_id")}
    index = job.metadata.get("raybatch.map_index", "-1")
    mapped = "" if index == "-1" else f"[{index}]"
    start = None if job.start_time is None else job.start_time / 1000
    end = time.time() if job.end_time is None else job.end_time / 1000
    return {
        "submission_id": job.submission_id,
        "task": f"{of_task['dag_id']}.{of_task['task_id']}{mapped}",
        "run": of_task["run_id"],
        "state": job.status.value,
        "start": None if start is None else _time(start),
        "duration": None if start is None else in_words(max(0.0, end - start)),
    }


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")
