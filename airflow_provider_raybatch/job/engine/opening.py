# SPDX-License-Identifier: Apache-2.0
"""Which engine a spec asks for."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine


def import_engine(spec: BatchInferenceSpec) -> None:
    """Import what the engine needs, which for vLLM takes half of a small model's start."""
    if spec.engine == "vllm":
        from airflow_provider_raybatch.job.engine import fork_server

        fork_server.start()  # before the import, so that both go on at the same time
        import vllm  # noqa: F401


def open_engine(spec: BatchInferenceSpec, spans_nodes: bool = False) -> Engine:
    """Start the engine that `spec` asks for, in this process.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group, one each.
    :raises RaybatchError: it can't start.
    """
    if spec.engine == "echo":
        from airflow_provider_raybatch.job.engine.echo import EchoEngine

        return EchoEngine(spec, spans_nodes)
    if spec.engine == "vllm":
        from airflow_provider_raybatch.job.engine.vllm import VllmEngine

        return VllmEngine(spec, spans_nodes=spans_nodes)
    raise SpecError(f"engine: {spec.engine!r} has no engine of its own process; it runs as Ray Data stages.")
