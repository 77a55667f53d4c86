# SPDX-License-Identifier: Apache-2.0
"""Which engine a spec asks for."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine


def open_engine(spec: BatchInferenceSpec) -> Engine:
    """Start the engine that `spec` asks for, in this process.

    :raises RaybatchError: it can't start.
    """
    if spec.engine == "echo":
        from airflow_provider_raybatch.job.engine.echo import EchoEngine

        return EchoEngine(spec)
    if spec.engine == "vllm":
        from airflow_provider_raybatch.job.engine.vllm import VllmEngine

        return VllmEngine(spec)
    raise SpecError(f"engine: {spec.engine!r} has no engine of its own process; it runs as Ray Data stages.")
