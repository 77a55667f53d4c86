# SPDX-License-Identifier: Apache-2.0
"""``ServedBatchOperator`` and its run in a unit test, and what an earlier job has left of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_raybatch.batch_api.dags.operators import ServedBatchOperator
from airflow_provider_raybatch.batch_api.store.ending import dataset_of
from airflow_provider_raybatch.batch_api.store.records import BatchRecord, Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome, Decision
from airflow_provider_raybatch.retries import ray_batch_retry_policy
from tests.support.airflow_tasks import Run
from tests.support.batch_api import MODEL, write_progress


def operator(**arguments: Any) -> ServedBatchOperator:
    given: dict[str, Any] = {"task_id": "answer", "served_model_name": MODEL, "engine": "echo"}
    policy = ray_batch_retry_policy()
    return ServedBatchOperator(**{"poll_interval": 0.05, "retry_policy": policy, **given, **arguments})


class ServedRun(Run):
    """The DAG run of a batch."""

    def __init__(self, record: BatchRecord, **conf: Any) -> None:
        super().__init__(dag_id=record.dag_id, task_id="answer", run_id=record.id)
        self.conf: Any = {"batch_id": record.id, **conf}

    def context(self) -> Any:
        run = SimpleNamespace(run_id=self.ids["run_id"], conf=self.conf)
        return {**super().context(), "dag_run": run}


def begun(store: BatchStore, record: BatchRecord, answered: int | None = None) -> None:
    """Leave a batch as a job does that has died.

    :param answered: requests; ``None`` for a job that has claimed the destination alone.
    """
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    store.root.write(f"{dataset_of(record.id)}/_raybatch/journal/00000000.json", b"{}")
    if answered is not None:
        write_progress(store, record.id, answered)


def decide(store: BatchStore, record: BatchRecord, decision: Decision) -> None:
    store.decide(record.id, BatchOutcome(decision=decision, at=5.0, nonce="n"))
