# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from ray.util.metrics import Gauge

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.run.pipeline import Pipeline
from tests.support.specs import submitted


class Stages:
    """Stands for a Dataset, which makes its name a tag of Ray's own metrics when it runs."""

    name = ""

    def set_name(self, name: str) -> None:
        self.name = name

    def iter_rows(self) -> list[int]:
        Gauge("data_sched_loop_duration_s", tag_keys=("dataset",)).set(1.0, {"dataset": self.name})
        return [1, 2]


@pytest.mark.parametrize(
    ("dag_id", "name"),
    [
        ("nightly", "nightly.label"),
        ("tägliche_berichte", "tagliche_berichte.label"),
        ("日報", "u65e5u5831.label"),
        ("é" * 250, f"{'e' * 80}.label"),
    ],
)
def test_dataset_of_a_task_with_any_name_runs(dag_id: str, name: str) -> None:
    stages: Any = Stages()
    rows: list[Any] = []
    task = {"dag_id": dag_id, "run_id": "r", "task_id": "label"}
    pipeline = Pipeline(lambda: stages, submitted(task=task), rows.append)
    pipeline.show(Progress(done=1, total=2))  # without an executor of Ray Data
    pipeline.join()
    assert (pipeline.error, rows, stages.name) == (None, [1, 2], name)
