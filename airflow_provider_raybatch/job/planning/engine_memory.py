# SPDX-License-Identifier: Apache-2.0
"""What vLLM makes of a GPU's memory: weights, what a step takes, and the KV cache. Pure.

The KV cache follows vLLM's own arithmetic. What a step takes was fitted to eleven engines on an H200 with
vLLM 0.26; the tokens of all of them are within 1 % (`benchmarks/results/kv_cache.md`). ``max_model_len``
decides which rows fit, and takes no memory.

The memory of a GPU is what CUDA reports as total, from which vLLM takes its share: less than the product's
name says, and less still with error correction (L4, A10G, T4). Sources: H200 measured. L4 23,034 MiB and A10G
23,028 MiB by ``nvidia-smi`` in github.com/NVIDIA/TensorRT-LLM/issues/2398 and
github.com/vllm-project/vllm/issues/9373 (CUDA reports 0.45 GiB less); T4 14.58 GiB in
github.com/datawhalechina/self-llm/issues/162; L40S 44.53 GiB in github.com/Wan-Video/Wan2.1/issues/205.
The others, links and FP8 by NVIDIA's data sheets (FP8 since compute capability 8.9). One name may stand for
several products: "A100" for 40 and 80 GB, "H100" for 80 GB and for the NVL's 94.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.job.planning.model_shape import ModelShape

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """A GPU that Ray names.

    :param name: Ray's ``accelerator_type``.
    :param memory: bytes that CUDA reports, of the smallest product with this name.
    :param largest: bytes that the largest product with this name can't exceed.
    :param has_nvlink: whether the GPUs of a node are usually connected by NVLink; else by PCIe, over which
        tensor parallel is slow. PCIe cards of A100, H100 and H200 have it between pairs at most.
    :param has_fp8: whether it computes in FP8. Others need FP8 weights converted in each step.
    """

    name: str
    memory: int
    largest: int
    has_nvlink: bool
    has_fp8: bool

    @property
    def link(self) -> str:
        """``NVLink`` or ``PCIe``."""
        return "NVLink" if self.has_nvlink else "PCIe"

    @property
    def is_several(self) -> bool:
        """Whether products of clearly different memory have this name."""
        return self.memory < 0.87 * self.largest

    @property
    def takes_large_batches(self) -> bool:
        """Whether vLLM's defaults are 16,384 tokens and 1,024 sequences a step, instead of 8,192 and 256."""
        return self.memory >= 70 * GIB and not self.name.startswith("A100")


def _gpu(name: str, gib: float, gigabytes: float, nvlink: bool, fp8: bool) -> Gpu:
    """`gigabytes` as in the largest product's name, which count 2**30 bytes on some cards."""
    return Gpu(name, int(gib * GIB), int(gigabytes * GIB), nvlink, fp8)


_GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4", 14.58, 16, nvlink=False, fp8=False),
        _gpu("V100", 15.77, 32, nvlink=True, fp8=False),
        _gpu("L4", 22.03, 24, nvlink=False, fp8=True),
        _gpu("A10G", 22.03, 24, nvlink=False, fp8=False),
        _gpu("L40S", 44.4, 48, nvlink=False, fp8=True),
        _gpu("A100", 39.4, 80, nvlink=True, fp8=False),
        _gpu("A100-40G", 39.4, 40, nvlink=True, fp8=False),
        _gpu("A100-80G", 79.1, 80, nvlink=True, fp8=False),
        _gpu("RTX-PRO-6000", 94.9, 96, nvlink=False, fp8=True),
        _gpu("H20", 95.0, 141, nvlink=True, fp8=True),
        _gpu("H100", 79.1, 94, nvlink=True, fp8=True),
        _gpu("H200", 139.8, 141, nvlink=True, fp8=True),
        _gpu("B200", 178.0, 192, nvlink=True, fp8=True),
        _gpu("GB200", 184.0, 192, nvlink=True, fp8=True),
        _gpu("B300", 267.0, 288, nvlink=True, fp8=True),
        _gpu("GB300", 277.0, 288, nvlink=True, fp8=True),
    )
}


def gpu_named(accelerator_type: str | None) -> Gpu | None:
    """The GPU that Ray calls so; ``None`` for other names, about which nothing is known."""
    return _GPUS.get(accelerator_type or "")


def known_gpus(accelerator_types: Iterable[str | None]) -> tuple[Gpu, ...]:
    """The GPUs of a cluster by memory, the smallest first; empty if one of them is unknown."""
    found = [gpu_named(name) for name in set(accelerator_types)]
    known = [gpu for gpu in found if gpu is not None]
    return tuple(sorted(known, key=lambda gpu: gpu.memory)) if len(known) == len(found) else ()


DEFAULT_UTILIZATION = 0.92
"""vLLM's own ``gpu_memory_utilization``."""
_BLOCK = 16
"""Tokens of a block of the KV cache."""
_OUTSIDE_TORCH = int(0.22 * GIB)
"""Of CUDA and NCCL: the same in all engines that were measured."""
_STEP_BASE, _LOGITS_BASE = int(0.09 * GIB), int(0.05 * GIB)
_HIDDEN_TOKENS = 16_384
"""Tokens for which a step holds its hidden states three times. Fewer were not measured to hold less."""
_HELD = 3
"""Copies of hidden states and of a network's inner values that a compiled step holds at once."""
_UNPREDICTED = frozenset({
    "block_size", "data_parallel_size", "decode_context_parallel_size", "enable_lora", "hf_overrides",
    "kv_transfer_config", "num_gpu_blocks_override", "prefill_context_parallel_size", "speculative_config",
})  # fmt: skip
"""Engine arguments that change the memory in ways that are not followed here; so does each of offloading."""
_PLAIN_FORMATS = frozenset({"auto", "dummy", "hf", "runai_streamer", "safetensors"})


@dataclass(frozen=True)
class EngineSizes:
    """The engine arguments that decide about memory.

    :param weight_bits: into which `quantization` turns the weights of layers; ``None`` leaves them.
    :param cache_bytes: of an element of the KV cache.
    :param fixed_cache: bytes of the KV cache, where ``kv_cache_memory_bytes`` says so.
    :param overlaps_steps: vLLM's ``async_scheduling``, which it leaves out on CPUs.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    utilization: float = DEFAULT_UTILIZATION
    batched_tokens: int = 8192
    sequences: int = 256
    max_model_len: int = 0
    dtype_bytes: int = 2
    cache_bytes: int = 2
    weight_bits: float | None = None
    fixed_cache: int | None = None
    one_kind_of_layers: bool = False
    overlaps_steps: bool = True

    @property
    def steps_at_once(self) -> int:
        """How many steps are scheduled before the first of them has ended."""
        return self.pipeline_parallel if self.pipeline_parallel > 1 else 1 + self.overlaps_steps

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class EngineMemory:
    """Bytes of the fullest GPU of a replica, and the tokens that its KV cache holds.

    :param step: at most, of one step's values.
    :param graphs: of CUDA graphs, which vLLM since 0.27 sets aside before it sizes the cache.
    :param cache: left for the KV cache; negative where the model does not fit.
    :param tokens: as vLLM reports them ("GPU KV cache size"); 0 where the model does not fit.
    :param sequences: of `max_model_len` tokens, which the cache holds at once.
    """

    weights: int
    step: int
    graphs: int
    cache: int
    tokens: int
    sequences: float

    @property
    def starts(self) -> bool:
        """Whether vLLM starts: it refuses a cache that does not hold one sequence of `max_model_len`."""
        return self.sequences >= 1


def sizes_of(engine_args: Mapping[str, Any], shape: ModelShape, gpu: Gpu | None) -> EngineSizes | None:
    """What vLLM takes of these engine arguments.

    :param gpu: whose memory decides some of vLLM's defaults.
    :returns: ``None`` where an argument has effects that are not followed here.
    """
    if not _UNPREDICTED.isdisjoint(engine_args) or any("offload" in name for name in engine_args):
        return None
    if engine_args.get("load_format", "auto") not in _PLAIN_FORMATS:
        return None
    length = engine_args.get("max_model_len")
    if length is not None and _whole(engine_args, "max_model_len", 0) == 0:  # "auto" lets vLLM choose
        return None
    bits, dtype, cache = _bits(engine_args, shape), _dtype(engine_args), engine_args.get("kv_cache_dtype")
    if bits == 0 or dtype is None or not (cache in {None, "auto", "bfloat16", "float16"} or _is_fp8(cache)):
        return None
    large = gpu is not None and gpu.takes_large_batches
    sequences = _whole(engine_args, "max_num_seqs", 1024 if large else 256)
    max_model_len = _whole(engine_args, "max_model_len", shape.context)
    tokens = _whole(engine_args, "max_num_batched_tokens", 16_384 if large else 8192)
    utilization, fixed = engine_args.get("gpu_memory_utilization"), engine_args.get("kv_cache_memory_bytes")
    return EngineSizes(
        tensor_parallel=_whole(engine_args, "tensor_parallel_size", 1),
        pipeline_parallel=_whole(engine_args, "pipeline_parallel_size", 1),
        utilization=float(utilization) if isinstance(utilization, (int, float)) else DEFAULT_UTILIZATION,
        batched_tokens=min(tokens, sequences * max_model_len),
        sequences=sequences,
        max_model_len=max_model_len,
        dtype_bytes=dtype,
        cache_bytes=1 if _is_fp8(cache) else dtype,
        weight_bits=bits,
        fixed_cache=fixed if isinstance(fixed, int) else None,
        one_kind_of_layers=bool(engine_args.get("disable_hybrid_kv_cache_manager")),
        overlaps_steps=engine_args.get("async_scheduling") is not False,
    )


def weights_of_gpu(shape: ModelShape, sizes: EngineSizes, stored: int | None = None) -> int:
    """Bytes of the weights on the fullest GPU of a replica.

    :param stored: bytes of the files of weights. They count where the checkpoint is quantised, or has an
        encoder besides: then not all weights are of one size.
    """
    computed = _computed_weights(shape, sizes)
    as_stored = shape.stored_bits is not None or (shape.has_encoder and sizes.weight_bits is None)
    if stored is None or not as_stored:
        return computed
    whole = _computed_weights(shape, replace(sizes, tensor_parallel=1, pipeline_parallel=1))
    return int(stored * computed / whole)


def memory_of(
    shape: ModelShape,
    sizes: EngineSizes,
    gpu_bytes: int,
    stored: int | None = None,
    counts_graphs: bool = False,
) -> EngineMemory:
    """What vLLM makes of the memory of a replica's GPUs.

    :param gpu_bytes: of one GPU, as CUDA reports them.
    :param stored: see :func:`weights_of_gpu`.
    :param counts_graphs: whether this vLLM sets memory aside for CUDA graphs, as those after 0.26 do.
    """
    weights, step = weights_of_gpu(shape, sizes, stored), _step(shape, sizes)
    graphs = _graphs(shape) if counts_graphs else 0
    cache = int(gpu_bytes * sizes.utilization) - weights - step - _OUTSIDE_TORCH - graphs
    cache = cache if sizes.fixed_cache is None else sizes.fixed_cache
    group, blocks_of_sequence = _groups(shape, sizes)
    blocks = max(0, cache) // (group * _page(shape, sizes))
    sequences = blocks / blocks_of_sequence
    return EngineMemory(weights, step, graphs, cache, int(sequences * sizes.max_model_len), sequences)


def _computed_weights(shape: ModelShape, sizes: EngineSizes) -> int:
    wide = sizes.dtype_bytes
    small = sizes.weight_bits if sizes.weight_bits is not None else shape.stored_bits
    bytes_of_layer = wide if small is None else min(wide, small / 8)
    # MXFP4 is used for experts alone.
    quantised = shape.expert_parameters if small == 4.25 else shape.layer_parameters
    layers = quantised * bytes_of_layer + (shape.layer_parameters - quantised) * wide
    share = -(-shape.layers // sizes.pipeline_parallel) / shape.layers
    # The first stage has the input's embedding, the last one the output's.
    embeddings = 1 if shape.tied or sizes.pipeline_parallel > 1 else 2
    return int((layers * share + embeddings * shape.embedding_parameters * wide) / sizes.tensor_parallel)


def _step(shape: ModelShape, sizes: EngineSizes) -> int:
    inner = _HELD * shape.widest * sizes.batched_tokens
    hidden = _HELD * shape.hidden * max(sizes.batched_tokens, _HIDDEN_TOKENS)
    body = (inner + hidden) * sizes.dtype_bytes // sizes.tensor_parallel + _STEP_BASE
    logits = sizes.sequences * shape.vocabulary * sizes.dtype_bytes + _LOGITS_BASE
    return max(body, logits)


def _graphs(shape: ModelShape) -> int:
    """Roughly, from 0.34 GiB of a model of 270 million parameters to 1.16 GiB of one of 32 billion."""
    return int(min(1.2, 0.3 + shape.layers * shape.hidden / 200_000) * GIB)


def _page(shape: ModelShape, sizes: EngineSizes) -> int:
    """Bytes of a block in one layer."""
    elements = shape.latent or 2 * max(1, shape.kv_heads // sizes.tensor_parallel) * shape.head_dim
    return _BLOCK * elements * sizes.cache_bytes


def _groups(shape: ModelShape, sizes: EngineSizes) -> tuple[int, int]:
    """Layers that share a block, and the blocks of a sequence of `max_model_len` tokens.

    vLLM puts layers of a kind into groups of one size, and gives each group blocks of its own. Of a layer
    with a sliding window a sequence keeps the window and what is computed at once.
    """
    layers = -(-shape.layers // sizes.pipeline_parallel)
    whole = -(-sizes.max_model_len // _BLOCK)
    sliding = round(shape.sliding_layers * layers / shape.layers)
    full = layers - sliding
    if not sliding or sizes.one_kind_of_layers:
        return layers, whole
    kept = min(shape.window - 1 + sizes.steps_at_once * sizes.batched_tokens, sizes.max_model_len)
    in_window = -(-kept // _BLOCK) + 1
    if not full:
        return layers, in_window
    few, many = sorted((full, sliding))
    size = many if many < few * 1.5 else few
    return size, -(-full // size) * whole + -(-sliding // size) * in_window


def _bits(engine_args: Mapping[str, Any], shape: ModelShape) -> float | None:
    """Into which weights are quantised as they are loaded; 0 if that is not known."""
    method = engine_args.get("quantization")
    if shape.stored_bits is not None:
        return 0 if shape.stored_bits == 0 else None
    return {None: None, "fp8": 8.0, "bitsandbytes": 4.5}.get(method, 0.0)


def _dtype(engine_args: Mapping[str, Any]) -> int | None:
    """Bytes of an element. By default vLLM loads weights of 32 bits in 16."""
    names = {"auto": 2, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
    return names.get(str(engine_args.get("dtype") or "auto"))


def _is_fp8(cache_dtype: Any) -> bool:
    return isinstance(cache_dtype, str) and cache_dtype in {"fp8", "fp8_e4m3", "fp8_e5m2"}


def _whole(engine_args: Mapping[str, Any], name: str, default: int) -> int:
    given = engine_args.get(name)
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 1 else default
