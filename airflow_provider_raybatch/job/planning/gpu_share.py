# SPDX-License-Identifier: Apache-2.0
"""The part of a GPU's memory that an engine takes which shares the GPU, and whether a model fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.planning.engine_memory import (
    DEFAULT_UTILIZATION,
    sizes_of,
    weights_of_gpu,
)
from airflow_provider_raybatch.job.planning.gpus import GIB, Gpu
from airflow_provider_raybatch.job.planning.model_fit import CLEARLY, ModelSizes, gib

UTILIZATION = "gpu_memory_utilization"
OUTSIDE = int(0.6 * GIB)
"""Of each engine, beside what `gpu_memory_utilization` bounds: vLLM counts from when CUDA has its context,
which takes about half a GiB, so n engines on a GPU have n contexts that none of them counts. An engine alone
has the 8 % for it that vLLM leaves free."""
_LEAST = 0.001
_LEAST_ROW = 1024
"""Tokens that a cache must hold where the user sets no `max_model_len`: the job may derive a shorter one than
the model's own."""
_STEPS = 20
"""A share that is proposed is a multiple of 1/20."""


def utilization_of(share: float, gpu_bytes: int | None) -> float:
    """`gpu_memory_utilization` of an engine that takes this share of a GPU, so that all shares fit on it.

    :param gpu_bytes: of the whole GPU; ``None`` if they are not known.
    """
    if share >= 1:
        return DEFAULT_UTILIZATION
    part = share * DEFAULT_UTILIZATION - (OUTSIDE / gpu_bytes if gpu_bytes else 0.0)
    return max(_LEAST, math.floor(part * 1000) / 1000)


def with_utilization(engine_args: Mapping[str, Any], share: float | None, gpu: Gpu | None) -> dict[str, Any]:
    """`engine_args` with the memory of the share, unless the user has set it.

    :param share: `num_gpus`; ``None`` for whole GPUs.
    """
    if share is None or share >= 1 or gpu is None or engine_args.get(UTILIZATION) is not None:
        return dict(engine_args)
    return {**engine_args, UTILIZATION: utilization_of(share, gpu.memory)}


def share_refusal(
    model: ModelSizes,
    name: str,
    engine_args: Mapping[str, Any],
    share: float,
    gpus: Iterable[Gpu],
    tokens: int = 0,
    has_cache: bool = True,
) -> str | None:
    """Why the share of no GPU of these holds the model, in one sentence; ``None`` if one may.

    Weights and the cache of one row count, so nothing is refused that may work. What is proposed also has
    room for a step.

    :param name: of the model.
    :param tokens: of the row that the cache must hold at least; by default the user's `max_model_len`.
    :param has_cache: whether the engine has a KV cache, which most pooling models lack.
    """
    largest = max(gpus, key=lambda gpu: gpu.largest, default=None)
    if largest is None:
        return None
    given = engine_args.get("max_model_len")
    needed = given if isinstance(given, int) and given > 0 else max(tokens, _LEAST_ROW)
    needed = min(needed, model.shape.context or needed)
    of_gpu = replace(largest, memory=largest.largest)
    sizes = sizes_of(
        {**with_utilization(engine_args, share, of_gpu), "max_model_len": needed}, model.shape, of_gpu
    )
    if sizes is None or sizes.fixed_cache is not None:
        return None
    weights = weights_of_gpu(model.shape, sizes, model.stored)
    row = model.row(sizes) if has_cache else 0
    part = sizes.utilization * largest.largest
    if weights / (CLEARLY if model.shape.needs_files else 1) + row <= part:
        return None
    fits = smallest_share(model, engine_args, largest, needed)
    remedy = f"set num_gpus to at least {fits:g}" if fits is not None and fits < 1 else "leave num_gpus out"
    remedy += f" without {UTILIZATION}" if engine_args.get(UTILIZATION) is not None else ""
    of_row = f" and a KV cache of {count_of(needed, 'token')} {gib(row)}" if row >= GIB / 20 else ""
    return (
        f"num_gpus: {share:g} of {largest.name} gives an engine at most {gib(part)} ({UTILIZATION} "
        f"{sizes.utilization:g}), and the weights of {name!r} take "
        f"{gib(weights)}{of_row}; {remedy}, or choose a smaller model or larger GPUs."
    )


def smallest_share(model: ModelSizes, engine_args: Mapping[str, Any], gpu: Gpu, tokens: int) -> float | None:
    """The smallest share that holds weights, a step and a row of so many tokens; ``None`` if none does."""
    free = {name: value for name, value in engine_args.items() if name != UTILIZATION}
    for step in range(1, _STEPS + 1):
        share = step / _STEPS
        given = {**with_utilization(free, share, gpu), "max_model_len": max(1, tokens)}
        sizes = sizes_of(given, model.shape, gpu)
        if sizes is not None and model.memory(sizes, gpu.memory).starts:
            return share
    return None
