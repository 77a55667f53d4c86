# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.hooks.warm_engines CONN_ID [--end]``: a cluster's warm engines.

A job on the cluster lists them, so that no Ray is needed here.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid
from collections.abc import Sequence

from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.cluster.follow.poll import Followed
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit.request import build_warm_engines_request
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.hooks.ray import RayHook

_POLL = 1.0


def main(words: Sequence[str] | None = None) -> None:
    """List warm engines, or end them; `words` are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_raybatch.hooks.warm_engines")
    parser.add_argument("ray_conn_id", nargs="?", default=DEFAULT_CONN_ID)
    parser.add_argument("--end", action="store_true", help="end those that no job uses")
    given = parser.parse_args(words)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        outcome = run_blocking(_ask(RayHook(given.ray_conn_id).get_address(), given.end))
    except RaybatchError as error:
        sys.exit(str(error))
    if outcome.failure_class is not None:
        sys.exit(outcome.message)


async def _ask(address: ClusterAddress, end: bool) -> Outcome:
    submission_id = f"raybatch-warm-engines-{uuid.uuid4().hex[:8]}"
    async with RayJobsClient(address) as client:
        await client.submit(await build_warm_engines_request(client, submission_id, end=end))
    job = Followed(submission_id, session_name=None, poll_interval=_POLL)
    return await follow_to_the_end(address, job, logging.getLogger(__name__))


if __name__ == "__main__":
    main()
