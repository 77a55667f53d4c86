# SPDX-License-Identifier: Apache-2.0
"""The recipe "Read only what is new", for a run that is triggered with a key."""

from __future__ import annotations

import os

from airflow.sdk import Asset, PartitionedAssetTimetable, PartitionedAtRuntime, dag, task

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

FOLDER = os.environ["AIRFLOW_HOME"] + "/partitions"
INDUSTRIES = Asset("industries_by_night")


@dag(schedule=PartitionedAtRuntime())
def each_night():
    RayBatchInferenceOperator(
        task_id="label",
        source=FOLDER + "/night={{ dag_run.partition_key }}.jsonl",
        prompt="{row.company}",
        engine="echo",
        destination=FOLDER + "/out/night={{ dag_run.partition_key }}",
        outlets=[INDUSTRIES],
    )


@dag(schedule=PartitionedAssetTimetable(assets=INDUSTRIES))
def after_each_night():
    @task
    def load(dag_run, triggering_asset_events) -> list:
        events = triggering_asset_events[INDUSTRIES]
        return [dag_run.partition_key, *(event.extra["manifest_uri"] for event in events)]

    load()


each_night()
after_each_night()
