# SPDX-License-Identifier: Apache-2.0
"""Which engine a spec asks for."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.engine.base import Engine, Renewable
from airflow_provider_raybatch.job.engine_process import server
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy


def import_engine(spec: BatchInferenceSpec, spans_nodes: bool = False) -> EngineProxy | None:
    """Import what the engine needs, which for vLLM takes half of a small model's start.

    :returns: the process that has imported it, for :func:`open_engine`; ``None`` if the engine has none.
    """
    return EngineProxy() if spec.engine == "vllm" and not spans_nodes else None


def identity(spec: BatchInferenceSpec, files: str) -> str:
    """32 hex digits over what decides an engine.

    :param spec: as it was checked, with the version of the model.
    :param files: digest of the files of model and tokenizer.
    """
    share = spec.num_gpus if spec.shares_gpu else None
    return json_digest([spec.engine, spec.model, spec.engine_args, files, spec.model_task, share])


def opener(spec: BatchInferenceSpec) -> Callable[..., Renewable]:
    """The function that starts the engine."""
    return server.open_echo if spec.engine == "echo" else server.open_vllm


def open_engine(
    spec: BatchInferenceSpec,
    spans_nodes: bool = False,
    proxy: EngineProxy | None = None,
    files: str = "",
) -> Engine:
    """Start the engine that `spec` asks for.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group, one each. vLLM finds
        them in the actor's own process alone.
    :param proxy: the process for it; without one, it runs in this process.
    :param files: see :func:`identity`. An equal warm engine is taken as it is.
    :raises RaybatchError: it can't start.
    """
    if proxy is not None:
        proxy.open(spec, opener(spec), identity(spec, files))
        return proxy
    return opener(spec)(spec, spans_nodes)
