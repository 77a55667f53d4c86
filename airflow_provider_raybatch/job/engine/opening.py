# SPDX-License-Identifier: Apache-2.0
"""Which engine a spec asks for."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_raybatch.contract.digest import json_digest
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import server
from airflow_provider_raybatch.job.engine.base import Engine, Renewable
from airflow_provider_raybatch.job.engine.proxy import EngineProxy


def import_engine(spec: BatchInferenceSpec, spans_nodes: bool = False) -> EngineProxy | None:
    """Import what the engine needs, which for vLLM takes half of a small model's start.

    :param spans_nodes: see :func:`open_engine`.
    :returns: the process that has it, to be given to :func:`open_engine`; ``None`` if there is none.
    """
    return EngineProxy() if spec.engine == "vllm" and not spans_nodes else None


def identity(spec: BatchInferenceSpec, files: str) -> str:
    """32 hex digits over what an engine is made of; the rest of a spec decides only what it is asked.

    :param spec: as it was checked, with the version of the model.
    :param files: digest of the files of model and tokenizer.
    """
    return json_digest([spec.engine, spec.model, spec.engine_args, files])


def opener(spec: BatchInferenceSpec) -> Callable[[BatchInferenceSpec], Renewable]:
    """What opens it in its front end's process."""
    return server.open_echo if spec.engine == "echo" else server.open_vllm


def open_engine(
    spec: BatchInferenceSpec,
    spans_nodes: bool = False,
    apart: EngineProxy | None = None,
    files: str = "",
) -> Engine:
    """Start the engine that `spec` asks for.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group, one each. vLLM finds
        them in the actor's own process alone.
    :param apart: the process that it shall have.
    :param files: digest of the files of model and tokenizer. An equal warm engine is taken as it is.
    :raises RaybatchError: it can't start.
    """
    if apart is not None:
        apart.open(spec, opener(spec), identity(spec, files))
        return apart
    if spec.engine == "echo":
        from airflow_provider_raybatch.job.engine.echo import EchoEngine

        return EchoEngine(spec, spans_nodes)
    if spec.engine == "vllm":
        from airflow_provider_raybatch.job.engine.vllm import VllmEngine

        return VllmEngine(spec, spans_nodes=spans_nodes)
    raise SpecError(f"engine: {spec.engine!r} has no engine of its own process; it runs as Ray Data stages.")
