# SPDX-License-Identifier: Apache-2.0
"""Values of the labels by which the clusters of a run, and of all runs of a task, are listed."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.kuberay.rayjob import RUN, TASK
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.digest import json_digest


def run_label(key: SubmissionKey) -> str:
    """Value of :data:`RUN`, 32 hex digits: the same for all clusters of one run of a task."""
    return json_digest([key.task.digest, key.run_token])


def task_label(key: SubmissionKey) -> str:
    """Value of :data:`TASK`, 32 hex digits: the same for all runs of a task."""
    return key.task.digest


def of_run(key: SubmissionKey) -> str:
    """Label selector of the clusters of a run."""
    return f"{RUN}={run_label(key)}"


def of_task(key: SubmissionKey) -> str:
    """Label selector of the clusters of all runs of a task."""
    return f"{TASK}={task_label(key)}"
