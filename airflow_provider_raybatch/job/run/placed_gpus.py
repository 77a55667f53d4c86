# SPDX-License-Identifier: Apache-2.0
"""The count of the GPUs that the replicas of a job hold, by the types of the cluster's nodes."""

from __future__ import annotations

import time

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.monitor.held_gpus import HeldGpus
from airflow_provider_raybatch.job.planning.cluster_view import GpuTypes
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm


def held_gpus(spec: BatchInferenceSpec, sizing: Plan, launch: Launch) -> HeldGpus:
    """Begin to count, also for replicas that start now."""
    type_of, unseen = GpuTypes(spec.accelerator_type, spec.gpu_hour_price or ()), {}
    if spec.engine == ray_data_llm.NAME and sizing.gpus:
        types = type_of.look()
        kind = types.pop() if len(types) == 1 else spec.accelerator_type or ""
        unseen = {kind: sizing.gpus * sizing.replicas}
    return HeldGpus(sizing.gpus, launch.began or time.time(), type_of, unseen, launch.at_once)
