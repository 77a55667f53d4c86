# SPDX-License-Identifier: Apache-2.0
"""``raybatch engines``: the warm engines of a cluster. A job there lists them, so this needs no Ray."""

from __future__ import annotations

import uuid
from argparse import Namespace

from airflow_provider_raybatch.cli.quiet import quietly
from airflow_provider_raybatch.cluster.follow.log_tail import for_task_log
from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.cluster.follow.poll import Followed
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit.request import build_warm_engines_request
from airflow_provider_raybatch.contract.event_line import MARKER
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.text import clean
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID

_POLL = 1.0


def show_engines(options: Namespace) -> None:
    """List warm engines, or end them."""
    from airflow_provider_raybatch.hooks.ray import RayHook

    address = quietly(RayHook(options.conn_id or DEFAULT_CONN_ID).get_address)
    outcome = run_blocking(_ask(address, options.end))
    if outcome.failure_class is not None:
        raise RaybatchError(outcome.message, outcome.failure_class)


async def _ask(address: ClusterAddress, end: bool) -> Outcome:
    submission_id = f"raybatch-warm-engines-{uuid.uuid4().hex[:8]}"
    async with RayJobsClient(address) as client:
        await client.submit(await build_warm_engines_request(client, submission_id, end=end))
    job = Followed(submission_id, poll_interval=_POLL)
    return await follow_to_the_end(address, job, PrintedOfJob())


class PrintedOfJob:
    """Prints what a job says; the part of a logger that followers of a job use.

    Without what Ray says around it, what steers a terminal, and the signed documents of events.
    """

    def info(self, event: str, *args: object) -> None:
        """Print a line, unless it is Ray's."""
        line = for_task_log(event % args if args else event, batch=True)
        if line is not None:
            sentence, marker, _ = line.rpartition(MARKER)
            print(clean(sentence.rstrip() if marker else line), flush=True)

    warning = error = info
