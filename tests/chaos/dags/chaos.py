# SPDX-License-Identifier: Apache-2.0
"""Batch inferences with a pace, so that there is time to kill or stop; their rows come with the run."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import one_task
from airflow.triggers.testing import FailureTrigger

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

MODES = {"blocking": False, "deferrable": True}
SECONDS = float(os.environ["CHAOS_BOUND_SECONDS"])


class Mapped(RayBatchInferenceOperator):
    """One of several mapped tasks, each with its own folder below that of the run's params."""

    def __init__(self, *, place: str, **options: Any) -> None:
        super().__init__(**options)
        self.place = place

    def execute(self, context: Any) -> Any:
        self.source, self.destination = (
            f"{Path(path).parent}/{self.place}/{Path(path).name}" for path in (self.source, self.destination)
        )
        log = Path(self.engine_args["request_log"])
        self.engine_args = {**self.engine_args, "request_log": f"{log.parent}/{self.place}/{log.name}"}
        return super().execute(context)


class WithBadTrigger(RayBatchInferenceOperator):
    """A batch inference whose trigger raises once the job has finished some rows."""

    def defer(self, *, trigger: Any, **options: Any) -> Any:
        while not [*Path(self.destination).glob("_raybatch/parts/**/*.parquet")]:
            time.sleep(0.5)
        super().defer(trigger=FailureTrigger(), **options)  # type: ignore[no-untyped-call]


def add(
    dag_id: str,
    deferrable: bool,
    kind: type[RayBatchInferenceOperator] = RayBatchInferenceOperator,
    **options: Any,
) -> None:
    """Add a DAG of one task."""
    with one_task.dag_of_runs(dag_id, at_once=16, retry_seconds=2) as dag:
        fields = one_task.arguments(deferrable, max_restarts=10, **options)
        if kind is Mapped:
            kind.partial(**fields).expand(place=["0", "1", "2"])
        else:
            kind(**fields)
    globals()[dag_id] = dag


for mode, deferrable in MODES.items():
    add(f"chaos_{mode}", deferrable, retries=20)
    add(f"once_{mode}", deferrable, retries=0)
    add(f"mapped_{mode}", deferrable, Mapped, retries=20)
    add(f"stop_{mode}", deferrable, retries=0)
    add(f"timeout_{mode}", deferrable, retries=0, timeout=SECONDS)
    add(f"execution_timeout_{mode}", deferrable, retries=0, execution_timeout=timedelta(seconds=SECONDS))
add("bad_trigger", True, WithBadTrigger, retries=0)
