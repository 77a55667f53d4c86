# SPDX-License-Identifier: Apache-2.0
"""Refuses a model whose weights no GPU of the cluster holds, and says what its KV cache will hold."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.planning import plan
from airflow_provider_raybatch.job.planning.gpus import known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelFit, ModelSizes, fit_of, refusal
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from airflow_provider_raybatch.job.planning.plan import Cluster
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles
from airflow_provider_raybatch.job.preflight.model_look import weights_of


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
    return ModelSizes(shape, stored, counts_graphs=_counts_graphs(vllm))


def check_memory(spec: BatchInferenceSpec, model: ModelSizes | None, cluster: Cluster) -> Notice | None:
    """Say what the model leaves of a GPU's memory.

    :param model: ``None`` if nothing is known of it.
    :returns: ``None`` on CPUs, and where nothing is known for certain.
    :raises PreflightError: the weights alone exceed the memory of every GPU that the cluster has or may get.
    """
    if model is None or not plan.make(spec, 1, cluster).gpus:
        return None
    types = cluster.gpu_types(spec.accelerator_type)
    gpus, of_a_node = known_gpus(types), cluster.gpus_of_a_node(spec.accelerator_type)
    may_grow = spec.accelerator_type is None and spec.cluster_wait and cluster.autoscaler is None
    if not may_grow and (why := refusal(model, spec.model, spec.engine_args, gpus, of_a_node)):
        raise PreflightError(why)
    fit = expected_fit(spec, model, cluster)
    if len(gpus) != 1 or fit.fits is None:
        return None
    level = "info" if fit.fits else "warning"
    # Without the remedy where it fits: other sizes are a choice, and `raybatch plan` shows them.
    named = ["model"] if fit.fits else ["model", "parallel", "quantization"]
    return Notice(
        level=level, message=f"memory: {'; '.join(fit.reasons[one] for one in named if one in fit.reasons)}"
    )


def expected_fit(spec: BatchInferenceSpec, model: ModelSizes | None, cluster: Cluster) -> ModelFit:
    """Whether the model fits the cluster's GPUs, with the reason of each choice.

    :param model: ``None`` if nothing is known of it.
    :returns: of the GPU with the least memory, where the cluster has several types.
    """
    gpus = known_gpus(cluster.gpu_types(spec.accelerator_type))
    of_a_node = cluster.gpus_of_a_node(spec.accelerator_type)
    return fit_of(model, spec.engine_args, gpus[0] if gpus else None, of_a_node)


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


def _counts_graphs(vllm: str | None) -> bool:
    """0.26 was measured not to set memory aside for CUDA graphs; 0.29 does by default."""
    parts = [int(part) for part in (vllm or "").split("+")[0].split(".")[:2] if part.isdigit()]
    return parts > [0, 26]
