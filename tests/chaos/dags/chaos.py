# SPDX-License-Identifier: Apache-2.0
"""Batch inferences that are paced, so that there is time to kill somebody; what they ask comes with the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

PARAMS: dict[str, Any] = {
    "source": "",
    "destination": "",
    "prompt": "",
    "sampling": {},
    "engine_args": {},
    "replicas": 2,
    "batch_size": 16,
    "rows_in_flight": 32,
}
MODES = {"blocking": False, "deferrable": True}


class Sized(RayBatchInferenceOperator):
    """Takes its sizes from the run's params, too."""

    def execute(self, context: Any) -> Any:
        self.replicas = int(context["params"]["replicas"])
        self.batch_size = int(context["params"]["batch_size"])
        self.rows_in_flight = int(context["params"]["rows_in_flight"])
        return super().execute(context)


for mode, deferrable in MODES.items():
    with DAG(
        f"chaos_{mode}",
        schedule=None,
        params=PARAMS,
        max_active_runs=16,
        render_template_as_native_obj=True,  # the params keep their types
        default_args={"retries": 20, "retry_delay": timedelta(seconds=2)},
    ):
        Sized(
            task_id="infer",
            deferrable=deferrable,
            poll_interval=1,
            source="{{ params.source }}",
            destination="{{ params.destination }}",
            prompt="{{ params.prompt }}",
            sampling="{{ params.sampling }}",
            engine="echo",
            engine_args="{{ params.engine_args }}",
            max_restarts=10,
            # Without an autoscaler a job whose nodes are being replaced is refused at once by default.
            cluster_wait=180,
        )
