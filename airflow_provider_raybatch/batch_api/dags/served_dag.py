# SPDX-License-Identifier: Apache-2.0
"""`serve_batches`: a DAG for each model of the Batch API, and one that deletes what has expired."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_raybatch.batch_api.dags.operators import BatchesSweepOperator, ServedBatchOperator
from airflow_provider_raybatch.batch_api.store.ids import TASK_ID
from airflow_provider_raybatch.batch_api.store.settings import ServedModel, served_models
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.retries import ray_batch_retry_policy

SWEEP_DAG = "batches_sweep"
RETRIES = 288
"""At pauses of 5 minutes, a day."""

_DEFAULTS: dict[str, Any] = {"is_paused_upon_creation": False, "tags": ["raybatch", "batch-api"]}
_OURS = ("dag_id", "schedule", "catchup", "max_active_runs", "params")
_RETRY: dict[str, Any] = {
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=30),
    "retry_policy": ray_batch_retry_policy(
        unavailable_delay=timedelta(minutes=1), longest_delay=timedelta(minutes=5)
    ),
}
"""A cluster that is away is asked every 5 minutes; an engine that dies starts twice an hour."""


def serve_batches(
    models: Sequence[str] | None = None, *, sweep: bool | None = None, **dag_arguments: Any
) -> list[DAG]:
    """Make a DAG for each configured model of the Batch API; one line in a DAG file does it.

    .. code-block:: python

        from airflow_provider_raybatch.batch_api.dags import serve_batches

        dags = serve_batches()

    In its safe mode, Airflow skips files in which the word "dag" stands nowhere; here, the name has it.

    A run of such a DAG answers one batch. The API server triggers it, and clears and retries go on where it
    stood.

    :param models: names of models, for a file that has only those of a team; by default all.
    :param sweep: whether the hourly DAG ``batches_sweep`` is made, too, which deletes files that have
        expired. By default where the file has all models; one a whole Airflow is enough.
    :param dag_arguments: of Airflow's ``DAG``, such as `default_args`, `tags` or `access_control`.
    :return: the DAGs, which Airflow finds without it.
    :raises SpecError: a model is not configured, or the configuration can't be used. Airflow shows the
        sentence as the import error of the DAG file.
    """
    for name in _OURS:
        if name in dag_arguments:
            raise SpecError(f"serve_batches: {name} is set for the batches of a model; leave it out.")
    made = [_served_dag(model, dag_arguments) for model in _chosen(models)]
    if models is None if sweep is None else sweep:
        made.append(_sweep_dag(dag_arguments))
    return made


def _chosen(names: Sequence[str] | None) -> Iterable[ServedModel]:
    configured = served_models()
    if names is None:
        return configured.values()
    if isinstance(names, str):
        raise SpecError(f"serve_batches: models must be a list of names; write [{names!r}].")
    for name in names:
        if name not in configured:
            known = ", ".join(map(repr, configured)) or "none"
            raise SpecError(
                f"serve_batches: model {shown(name)} is not in [raybatch] batch_api_models, where {known} "
                "are; correct the name, or configure it."
            )
    return [configured[name] for name in dict.fromkeys(names)]


def _served_dag(model: ServedModel, dag_arguments: dict[str, Any]) -> DAG:
    # The end of a `with` registers the DAG for the file that is being read, whichever module it is made in.
    with DAG(
        model.dag_id,
        schedule=None,
        catchup=False,
        max_active_runs=model.batches_at_once,
        **{**_DEFAULTS, "doc_md": _doc_of(model), **dag_arguments},
    ) as dag:
        ServedBatchOperator(
            task_id=TASK_ID,
            served_model_name=model.name,
            max_requests=model.max_requests,
            max_file_bytes=model.max_file_bytes,
            max_line_bytes=model.max_line_bytes,
            retries=RETRIES if model.retries is None else model.retries,
            **({} if model.pool is None else {"pool": model.pool}),
            **_RETRY,
            **copy.deepcopy(model.arguments),  # Airflow renders templates in place
        )
    return dag


def _sweep_dag(dag_arguments: dict[str, Any]) -> DAG:
    doc = "Deletes files of the Batch API that have expired, and what came of them."
    with DAG(
        SWEEP_DAG,
        schedule="@hourly",
        catchup=False,
        max_active_runs=1,
        **{**_DEFAULTS, "start_date": datetime(2026, 1, 1, tzinfo=UTC), "doc_md": doc, **dag_arguments},
    ) as dag:
        BatchesSweepOperator(task_id="sweep", retries=2, retry_delay=timedelta(minutes=5))
    return dag


def _doc_of(model: ServedModel) -> str:
    return (
        f"Answers batches that clients of the Batch API create for the model `{model.name}`, for "
        f"{' and '.join(f'`{one}`' for one in model.endpoints)}.\n\n"
        "Each run is one batch, whose id it has. The API server triggers runs; a run that is triggered "
        "by hand is refused. Clearing a run that goes on makes it go on where it stood; clearing one that "
        "has ended does nothing."
    )
