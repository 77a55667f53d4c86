# SPDX-License-Identifier: Apache-2.0
"""Names and labels of what a run creates; those of a RayJob follow from the run, so each attempt finds it."""

from __future__ import annotations

import secrets

from airflow_provider_raybatch.cluster.kuberay.rayjob import INSTALLATION, RUN, TASK
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.digest import hex_digest, json_digest

_DIGITS = 24


def rayjob_name(key: SubmissionKey, number: int) -> str:
    """Name of the run's RayJob `number`."""
    return f"raybatch-{run_label(key)[:_DIGITS]}-{number}"


def new_secret_name(rayjob: str) -> str:
    """A name for the Secret of a RayJob; each has another one, so each cluster has a token of its own."""
    return f"{rayjob}-{secrets.token_hex(4)}"


def installation_label(namespace: str) -> str:
    """Value of the label of one Airflow.

    :param namespace: the id of the Airflow installation, as in its tasks' keys.
    """
    return hex_digest(namespace)


def run_labels(key: SubmissionKey) -> dict[str, str]:
    """Labels of all that a run creates."""
    return {
        RUN: run_label(key),
        TASK: task_label(key),
        INSTALLATION: installation_label(key.task.namespace),
    }


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
