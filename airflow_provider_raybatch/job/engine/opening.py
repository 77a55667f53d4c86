# SPDX-License-Identifier: Apache-2.0
"""Which engine a spec asks for."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.apart import EngineApart
from airflow_provider_raybatch.job.engine.base import Engine


def import_engine(spec: BatchInferenceSpec, spans_nodes: bool = False) -> EngineApart | None:
    """Import what the engine needs, which for vLLM takes half of a small model's start.

    :param spans_nodes: see :func:`open_engine`.
    :returns: the process that has it, to be given to :func:`open_engine`; ``None`` if there is none.
    """
    return EngineApart() if spec.engine == "vllm" and not spans_nodes else None


def open_engine(
    spec: BatchInferenceSpec, spans_nodes: bool = False, apart: EngineApart | None = None
) -> Engine:
    """Start the engine that `spec` asks for.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group, one each. vLLM finds
        them in the actor's own process alone.
    :param apart: the process that it shall have.
    :raises RaybatchError: it can't start.
    """
    if apart is not None:
        apart.open(spec)
        return apart
    if spec.engine == "echo":
        from airflow_provider_raybatch.job.engine.echo import EchoEngine

        return EchoEngine(spec, spans_nodes)
    if spec.engine == "vllm":
        from airflow_provider_raybatch.job.engine.vllm import VllmEngine

        return VllmEngine(spec, spans_nodes=spans_nodes)
    raise SpecError(f"engine: {spec.engine!r} has no engine of its own process; it runs as Ray Data stages.")
