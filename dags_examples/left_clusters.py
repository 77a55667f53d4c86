# SPDX-License-Identifier: Apache-2.0
"""Every hour: delete the clusters on Kubernetes that runs of this Airflow have left.

No cluster needs it to go: a task deletes its own, and KubeRay ends each one at a deadline. It shortens what a
crash of a worker costs, and finds what was changed by hand.

Environment variables that Airflow's processes may set, all read when the file is parsed:

* ``RAYBATCH_EXAMPLE_KUBERNETES_CONN_ID``: a connection of type ``kubernetes``; default
  ``kubernetes_default``, which need not exist where the worker runs in a pod.
* ``RAYBATCH_EXAMPLE_NAMESPACES``: namespaces with clusters, separated by commas; default the connection's.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task

CONN_ID = os.environ.get("RAYBATCH_EXAMPLE_KUBERNETES_CONN_ID") or "kubernetes_default"
NAMESPACES = os.environ.get("RAYBATCH_EXAMPLE_NAMESPACES") or ""


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["raybatch"],
)
def left_clusters() -> None:
    @task(retries=2, retry_delay=timedelta(minutes=1))
    def delete_left() -> list[str]:
        """Delete what is proven to be left; the log says why each object goes or stays."""
        from airflow_provider_raybatch.kubernetes.left_clusters import delete_left_clusters

        namespaces = [name.strip() for name in NAMESPACES.split(",") if name.strip()] or [None]
        return [one for name in namespaces for one in delete_left_clusters(CONN_ID, name)]

    delete_left()


left_clusters()
