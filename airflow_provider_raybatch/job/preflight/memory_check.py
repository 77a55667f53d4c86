# SPDX-License-Identifier: Apache-2.0
"""Refuses a model that no GPU or node holds, and says what its KV cache will hold of rows how long."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import version_parts
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.planning.context_length import (
    AskedContext,
    ContextLength,
    context_length,
    context_on_cpus,
)
from airflow_provider_raybatch.job.planning.engine_memory import Gpu, known_gpus
from airflow_provider_raybatch.job.planning.fit import share_refusal, with_utilization
from airflow_provider_raybatch.job.planning.model_fit import (
    ModelFit,
    ModelSizes,
    fit_of,
    refusal,
    refusal_on_cpus,
    weights_on_cpus,
)
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles, weights_of

_WITHOUT_GRAPHS = (0, 26)
"""The vLLM that was measured not to set memory aside for CUDA graphs; 0.29 does by default."""
_RAYS_MEMORY = ("memory", "object_store_memory")
"""Resources that together are the memory that was free when Ray started."""


def model_sizes(config: Mapping[str, Any], files: ModelFiles | None, vllm: str | None) -> ModelSizes | None:
    """What decides the model's memory; ``None`` where the config tells too little.

    :param config: the content of ``config.json``.
    :param files: of the model, if they can be listed.
    :param vllm: the version that will load it, such as ``0.29.0``.
    """
    shape = shape_of(config)
    if shape is None:
        return None
    stored = _stored(files) if shape.needs_files and files is not None else None
    return ModelSizes(shape, stored, counts_graphs=version_parts(vllm or "") > _WITHOUT_GRAPHS)


def check_memory(spec: BatchInferenceSpec, model: ModelSizes | None, cluster: ClusterView) -> Notice | None:
    """Say what the model leaves of a GPU's memory.

    :param model: ``None`` if nothing is known of it.
    :returns: ``None`` on CPUs, and where nothing is known for certain.
    :raises PreflightError: the weights alone exceed the memory of every GPU that the cluster has or may get;
        on CPUs that of every node.
    """
    if model is None:
        return None
    if not plan.make(spec, 1, cluster).gpus:
        _refuse_on_cpus(spec, model, cluster)
        return None
    _refuse_weights(spec, model, cluster)
    fit = expected_fit(spec, model, cluster)
    if len(known_gpus(cluster.gpu_types(spec.accelerator_type))) != 1 or fit.fits is None:
        return None
    level = "info" if fit.fits else "warning"
    # Without the remedy where it fits: other sizes are a choice, and `raybatch plan` shows them.
    named = ["model"] if fit.fits else ["model", "parallel", "quantization"]
    return Notice(
        level=level, message=f"memory: {'; '.join(fit.reasons[one] for one in named if one in fit.reasons)}"
    )


def refuse_share(spec: BatchInferenceSpec, model: ModelSizes, cluster: ClusterView) -> None:
    """Refuse a pooling model whose weights the share of no GPU holds.

    :raises PreflightError: with the smallest share that does.
    """
    if plan.make(spec, 1, cluster).gpus:
        _refuse_weights(spec, model, cluster)


def expected_fit(spec: BatchInferenceSpec, model: ModelSizes | None, cluster: ClusterView) -> ModelFit:
    """Whether the model fits the cluster's GPUs, with the reason of each choice.

    :param model: ``None`` if nothing is known of it.
    :returns: of the GPU with the least memory, where the cluster has several types.
    """
    gpus = known_gpus(cluster.gpu_types(spec.accelerator_type))
    of_a_node = cluster.gpus_of_a_node(spec.accelerator_type)
    least = gpus[0] if gpus else None
    return fit_of(model, _sizing(spec, least), least, of_a_node, spec.num_gpus or 1.0)


def _sizing(spec: BatchInferenceSpec, gpu: Gpu | None = None) -> dict[str, Any]:
    """The engine arguments, with adapters: their room is not followed, so nothing is derived beside them.

    :param gpu: the one that engines share.
    """
    adapters = {"enable_lora": True} if spec.adapter_locations else {}
    return {**with_utilization(spec.engine_args, spec.num_gpus, gpu), **adapters}


def checked_context(
    spec: BatchInferenceSpec, model: ModelSizes | None, cluster: ClusterView, own: int, needed: int
) -> ContextLength:
    """The context length of the job's engines.

    :param model: ``None`` if nothing is known of it.
    :param own: and `needed`: see
        :class:`~airflow_provider_raybatch.job.planning.context_length.AskedContext`.
    :raises PreflightError: no GPU that the cluster has or may get holds the weights, or what the rows need.
    """
    asked = AskedContext(own, needed, spec.context_decides)
    if not plan.make(spec, 1, cluster).gpus:
        return context_on_cpus(model, _sizing(spec), asked)
    gpus = known_gpus(cluster.gpu_types(spec.accelerator_type))
    of_a_node = cluster.gpus_of_a_node(spec.accelerator_type)
    if model is not None:
        _refuse_weights(spec, model, cluster, max(needed, own if spec.context_decides else 0))
    found = context_length(model, _sizing(spec, gpus[0] if gpus else None), asked, gpus, of_a_node)
    if found.problem and not _may_grow(spec, cluster):
        raise PreflightError(found.problem)
    return found


def with_length(spec: BatchInferenceSpec, length: ContextLength | None) -> BatchInferenceSpec:
    """`spec` with the context length as a number, unless the user has set one."""
    if length is None or not length.tokens or spec.engine_args.get("max_model_len") is not None:
        return spec
    return spec.model_copy(update={"engine_args": {**spec.engine_args, "max_model_len": length.tokens}})


def expected_tokens(spec: BatchInferenceSpec, model: ModelSizes | None, cluster: ClusterView) -> int:
    """Tokens that the KV cache of an engine will hold; 0 if that is not known for one kind of GPU."""
    gpus = known_gpus(cluster.gpu_types(spec.accelerator_type))
    if len(gpus) != 1 or gpus[0].is_several or not plan.make(spec, 1, cluster).gpus:
        return 0
    memory = expected_fit(spec, model, cluster).memory
    return 0 if memory is None else memory.tokens


def _refuse_weights(
    spec: BatchInferenceSpec, model: ModelSizes, cluster: ClusterView, tokens: int = 0
) -> None:
    """:param tokens: of the row that a share of a GPU must hold at least; 0 for the least that may do."""
    gpus = known_gpus(cluster.gpu_types(spec.accelerator_type))
    if spec.shares_gpu:
        args, share = spec.engine_args, spec.num_gpus or 1.0
        why = share_refusal(model, spec.model, args, share, gpus, tokens, has_cache=not spec.pools)
    else:
        of_a_node = cluster.gpus_of_a_node(spec.accelerator_type)
        why = refusal(model, spec.model, spec.engine_args, gpus, of_a_node)
    if why and not _may_grow(spec, cluster):
        raise PreflightError(why)


def _refuse_on_cpus(spec: BatchInferenceSpec, model: ModelSizes, cluster: ClusterView) -> None:
    """The kernel would end the engine, or another process of its node."""
    weights = weights_on_cpus(model, spec.engine_args)
    free = max((sum(node.get(name, 0.0) for name in _RAYS_MEMORY) for node in cluster.nodes), default=0.0)
    if weights <= free or cluster.autoscaler is not None or _may_grow(spec, cluster):
        return
    memory = cluster_view.most_memory()  # asks each node, as Ray's own number does not hold the model
    if memory is not None and (why := refusal_on_cpus(spec.model, weights, memory)):
        raise PreflightError(why)


def _may_grow(spec: BatchInferenceSpec, cluster: ClusterView) -> bool:
    """Whether nodes of any kind may join."""
    return spec.accelerator_type is None and bool(spec.cluster_wait) and cluster.autoscaler is None


def _stored(files: ModelFiles) -> int | None:
    """Bytes of the files of weights; of the hub's, which has no sizes, those that the index names."""
    with contextlib.suppress(Exception):  # each store raises its own
        sizes = [files.sizes[name] for name in weights_of(files.sizes)]
        known = [size for size in sizes if size is not None]
        if known and len(known) == len(sizes):
            return sum(known)
        metadata = files.json("model.safetensors.index.json").get("metadata", {})
        total = metadata.get("total_size")
        return total if isinstance(total, int) and total > 0 else None
    return None
