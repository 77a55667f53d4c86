# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits a GPU, and with which sizes: each choice with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.planning.engine_memory import (
    GIB,
    EngineMemory,
    EngineSizes,
    Gpu,
    memory_of,
    sizes_of,
    weights_of_gpu,
)
from airflow_provider_raybatch.job.planning.model_shape import ModelShape
from airflow_provider_raybatch.job.planning.node_groups import gpus_in_words, times

CLEARLY = 1.1
"""Files of weights larger than the room by this factor are too large: vLLM need not load all that is in them.
Sums of parameters need none: eleven engines took 0 to 6 % more."""
_FP8, _FOUR_BITS = 8.0, 4.2
_DOUBLE = 1.9
_MOST_STAGES = 16
_ROOM_OF_SEQUENCE = 2048
"""Tokens for each of vLLM's sequences, which half a GPU must hold to be enough for an engine."""


@dataclass(frozen=True)
class ModelSizes:
    """A model, as far as its memory is concerned.

    :param stored: bytes of its files of weights, if known.
    :param counts_graphs: see :func:`~airflow_provider_raybatch.job.planning.engine_memory.memory_of`.
    """

    shape: ModelShape
    stored: int | None = None
    counts_graphs: bool = False

    def memory(self, sizes: EngineSizes, gpu_bytes: int) -> EngineMemory:
        """What vLLM makes of a GPU."""
        return memory_of(self.shape, sizes, gpu_bytes, self.stored, self.counts_graphs)

    def row(self, sizes: EngineSizes) -> int:
        """Bytes of the KV cache that a row of `max_model_len` tokens takes on one GPU."""
        large = 1 << 60
        return int(large / self.memory(replace(sizes, fixed_cache=large), 0).sequences)


@dataclass(frozen=True)
class ModelFit:
    """Whether a model fits, and what else would.

    :param fits: whether vLLM starts with the given engine arguments; ``None`` if that is not known.
    :param memory: of one GPU; ``None`` if it is not known.
    :param parallel: the parallel sizes that fit with the fewest GPUs, as engine arguments; empty where
        one GPU is enough, and where none does.
    :param reasons: one sentence for each of ``model``, ``parallel``, ``quantization``, ``kv_cache_dtype``,
        ``replicas`` and ``fractional_gpus`` for which there is something to say.
    """

    fits: bool | None
    memory: EngineMemory | None = None
    parallel: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def fit_of(
    model: ModelSizes | None,
    engine_args: Mapping[str, Any],
    gpu: Gpu | None,
    gpus_of_a_node: int = 1,
    share: float = 1.0,
) -> ModelFit:
    """Whether the model fits, and each choice with its reason.

    :param share: of a GPU that an engine takes; `engine_args` have its `gpu_memory_utilization`.

    :param model: ``None`` if its config tells too little.
    :param gpu: ``None`` if Ray does not name it, or by a name that is not known here.
    """
    sizes = sizes_of(engine_args, model.shape, gpu) if model is not None else None
    if model is None or gpu is None or sizes is None:
        unknown = "the model's sizes" if model is None else "the GPU" if gpu is None else "an engine argument"
        return ModelFit(None, reasons={"model": f"unknown: nothing can be derived from {unknown}"})
    memory = model.memory(sizes, gpu.memory)
    fits = memory.starts
    alone = replace(sizes, tensor_parallel=1, pipeline_parallel=1)
    fewest = next((one for one in _parallel(model, alone, gpu, gpus_of_a_node) if one is not None), None)
    reasons = {
        "model": _of_model(model, memory, sizes, gpu),
        "parallel": "" if share < 1 else _of_parallel(fewest, sizes, gpu),
        "quantization": _of_quantisation(model, sizes, gpu, memory, fits),
        "kv_cache_dtype": _of_cache(sizes, gpu, memory),
        "replicas": _of_replicas(sizes, gpus_of_a_node, fits, share),
        "fractional_gpus": _of_fractions(model, sizes, gpu, share),
    }
    return ModelFit(
        fits,
        memory,
        _as_arguments(fewest) if fewest and share == 1 else {},
        {name: why for name, why in reasons.items() if why},
    )


def refusal(
    model: ModelSizes, name: str, engine_args: Mapping[str, Any], gpus: Iterable[Gpu], gpus_of_a_node: int = 1
) -> str | None:
    """Why no GPU of these holds the model's weights, in one sentence; ``None`` if one may.

    The largest product with the name of a GPU counts, and weights alone, so that nothing is refused that
    may work.

    :param name: of the model.
    :param gpus: all that the cluster has or may get.
    """
    largest = max(gpus, key=lambda gpu: gpu.largest, default=None)
    sizes = None if largest is None else sizes_of(engine_args, model.shape, largest)
    if largest is None or sizes is None:
        return None
    share = sizes.utilization if sizes.fixed_cache is None else 1.0
    weights, room = weights_of_gpu(model.shape, sizes, model.stored), share * largest.largest
    if weights <= room * (CLEARLY if model.shape.needs_files else 1):
        return None
    whole = replace(largest, memory=largest.largest)
    remedies = [*ways_to_hold(model, sizes, whole, gpus_of_a_node), "choose a smaller model or larger GPUs"]
    where = "one GPU" if sizes.gpus == 1 else f"each of a replica's {count_of(sizes.gpus, 'GPU')}"
    return (
        f"model: the weights of {name!r} take {gib(weights)} on {where}, and vLLM has at most {gib(room)} "
        f"there (gpu_memory_utilization {share:g} of {largest.name}, at most {gib(largest.largest)}); "
        f"{', or '.join(remedies)}."
    )


def weights_on_cpus(model: ModelSizes, engine_args: Mapping[str, Any]) -> int:
    """Bytes of main memory that the weights take at least; 0 if that is not known."""
    sizes = sizes_of(engine_args, model.shape, None)
    if sizes is None:
        return 0
    whole = weights_of_gpu(model.shape, replace(sizes, tensor_parallel=1, pipeline_parallel=1), model.stored)
    return int(whole / (CLEARLY if model.shape.needs_files else 1))


def refusal_on_cpus(name: str, weights: int, memory: int) -> str | None:
    """Why no node holds so many bytes of weights, in one sentence; ``None`` if one does.

    :param name: of the model.
    :param memory: bytes of the node that has most.
    """
    if weights <= memory:
        return None
    return (
        f"model: the weights of {name!r} take {gib(weights)} of main memory, since the cluster has no GPU, "
        f"and its largest node has {gib(memory)}; choose a smaller model or a larger node, or add GPUs."
    )


def ways_to_hold(
    model: ModelSizes, sizes: EngineSizes, gpu: Gpu, gpus_of_a_node: int, tokens: int = 1
) -> Iterator[str]:
    """Engine arguments with which a GPU holds the model and a row of so many tokens."""
    alone = replace(sizes, tensor_parallel=1, pipeline_parallel=1, max_model_len=tokens)
    fewest = next((one for one in _parallel(model, alone, gpu, gpus_of_a_node) if one is not None), None)
    if fewest is not None and fewest.gpus > sizes.gpus:
        arguments = " and ".join(f"{name}={value}" for name, value in _as_arguments(fewest).items())
        yield f"set {arguments} in engine_args"
    if name := _quantised_that_fits(model, replace(sizes, max_model_len=tokens), gpu):
        yield name


def tokens_in_words(tokens: int) -> str:
    """A number of tokens with three digits that count: an estimate knows no more."""
    return count_of(int(float(f"{tokens:.3g}")), "token")


def gib(size: float) -> str:
    """``4.0 GiB``."""
    return f"{size / GIB:,.1f} GiB"


def _parallel(
    model: ModelSizes, alone: EngineSizes, gpu: Gpu, gpus_of_a_node: int
) -> Iterator[EngineSizes | None]:
    """The sizes in question, fewest GPUs first; ``None`` in place of those that do not fit."""
    node = max(1, gpus_of_a_node)
    tensor = [1]
    while gpu.has_nvlink and tensor[-1] * 2 <= node and model.shape.heads % (tensor[-1] * 2) == 0:
        tensor.append(tensor[-1] * 2)
    asked = [(size, 1) for size in tensor]
    asked += [(tensor[-1], stages) for stages in range(2, min(_MOST_STAGES, model.shape.layers) + 1)]
    for wide, stages in asked:
        sizes = replace(alone, tensor_parallel=wide, pipeline_parallel=stages)
        yield sizes if model.memory(sizes, gpu.memory).starts else None


def _quantised_that_fits(model: ModelSizes, sizes: EngineSizes, gpu: Gpu) -> str:
    """How to quantise the model so that it fits; empty if it is quantised, or no way is enough."""
    if model.shape.stored_bits is not None or sizes.weight_bits is not None:
        return ""
    ways = {_FP8: "set quantization='fp8' in engine_args", _FOUR_BITS: "take it in 4 bits (AWQ or GPTQ)"}
    for bits, way in ways.items():
        smaller = replace(sizes, weight_bits=bits)
        can = bits != _FP8 or gpu.has_fp8 or gpu.name.startswith("A10")
        if can and model.memory(smaller, gpu.memory).starts:
            slower = bits == _FP8 and not gpu.has_fp8
            return f"{way}, which converts weights in each step on this GPU" if slower else way
    return ""


def _of_model(model: ModelSizes, memory: EngineMemory, sizes: EngineSizes, gpu: Gpu) -> str:
    weights, share = gib(memory.weights), f"{sizes.utilization:g} x {gib(gpu.memory)} of {gpu.name}"
    if memory.tokens <= 0:
        return f"the weights take {weights} and a step {gib(memory.step)}, together more than {share}"
    about = "at most" if model.shape.has_encoder else "at least" if gpu.is_several else "about"
    longest = f"{count_of(sizes.max_model_len, 'token')} (max_model_len)"
    text = (
        f"the weights take {weights} and a step {gib(memory.step)}; of {share}, {gib(memory.cache)} are "
        f"left for a KV cache of {about} {tokens_in_words(memory.tokens)}"
    )
    if not memory.starts:
        most = tokens_in_words(int(0.95 * memory.tokens))
        return f"{text}, which does not hold one row of {longest}: set max_model_len to at most {most}"
    return f"{text}, or {memory.sequences:,.1f} rows of {longest}"


def _of_parallel(fewest: EngineSizes | None, sizes: EngineSizes, gpu: Gpu) -> str:
    if fewest is None:
        return f"no parallel sizes of this kind of node hold it with max_model_len={sizes.max_model_len}"
    if fewest.gpus == 1:
        return "one GPU is enough, and replicas give more than tensor parallel" if sizes.gpus > 1 else ""
    arguments = " and ".join(f"{name}={value}" for name, value in _as_arguments(fewest).items())
    if fewest.tensor_parallel > 1:
        return f"{arguments}: the fewest GPUs that hold it, over NVLink"
    return f"{arguments}: the fewest GPUs that hold it; over PCIe stages exchange less than tensor parallel"


def _of_quantisation(
    model: ModelSizes, sizes: EngineSizes, gpu: Gpu, memory: EngineMemory, fits: bool
) -> str:
    if model.shape.stored_bits is not None or sizes.weight_bits is not None:
        return ""
    if not fits:
        name = _quantised_that_fits(model, sizes, gpu)
        return f"{name}, with which it fits" if name else ""
    tokens = model.memory(replace(sizes, weight_bits=_FP8), gpu.memory).tokens
    if not gpu.has_fp8 or tokens < _DOUBLE * memory.tokens:
        return ""
    return f"quantization='fp8' would leave room for about {tokens_in_words(tokens)}"


def _of_cache(sizes: EngineSizes, gpu: Gpu, memory: EngineMemory) -> str:
    if not gpu.has_fp8 or sizes.cache_bytes == 1 or memory.tokens <= 0:
        return ""
    times = "twice" if sizes.cache_bytes == 2 else "four times"
    return f"kv_cache_dtype='fp8' would hold {times} the tokens, with other responses"


def _of_replicas(sizes: EngineSizes, gpus_of_a_node: int, fits: bool, share: float) -> str:
    fit = times(gpus_of_a_node, share * sizes.gpus, "GPU")
    if not fits or fit < 1:
        return ""
    node, each = count_of(gpus_of_a_node, "GPU"), gpus_in_words(share * sizes.gpus)
    return f"{count_of(fit, 'replica')} of {each} a node of {node}"


def _of_fractions(model: ModelSizes, sizes: EngineSizes, gpu: Gpu, share: float) -> str:
    if share < 1:
        beside = count_of(times(1, share, "GPU"), "engine")
        return f"{beside} of {share:g} GPU each on one; gpu_memory_utilization is {sizes.utilization:g}"
    half = replace(sizes, utilization=sizes.utilization / 2)
    if sizes.gpus > 1 or sizes.fixed_cache is not None:
        return ""
    if model.memory(half, gpu.memory).tokens < sizes.sequences * _ROOM_OF_SEQUENCE:
        return ""
    return "half a GPU would be enough; num_gpus 0.5 in advanced lets another engine share it"


def _as_arguments(sizes: EngineSizes) -> dict[str, int]:
    found = {
        "tensor_parallel_size": sizes.tensor_parallel,
        "pipeline_parallel_size": sizes.pipeline_parallel,
    }
    return {name: value for name, value in found.items() if value > 1}
