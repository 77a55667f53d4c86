# SPDX-License-Identifier: Apache-2.0
"""How long prompt and response may be together, also where the model's own context does not fit. Pure.

A shorter context frees no memory: vLLM gives the whole KV cache to blocks that all rows share. So the
model's own stays wherever it fits, and elsewhere the longest that surely fits is taken. It follows from
model, GPU and engine arguments alone, so jobs with other rows share a warm engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.planning.engine_memory import (
    GIB,
    EngineSizes,
    Gpu,
    sizes_of,
    weights_of_gpu,
)
from airflow_provider_raybatch.job.planning.model_fit import (
    CLEARLY,
    ModelSizes,
    gib,
    tokens_in_words,
    ways_to_hold,
)

MEASURED = -1
"""VLLM's own value for "the longest that the cache holds, at most the model's own"."""
_MARGIN = GIB // 2
"""Of the KV cache, for what the arithmetic may miss: 0.1 GiB on H200s, and no other GPU was measured."""
_STEP = 1024
_ROW_ON_CPUS = GIB
"""Bytes of a row that a cache on CPUs may not hold: it takes a fifth of the free memory."""


@dataclass(frozen=True)
class ContextLength:
    """Tokens that a prompt and its response may have together.

    :param tokens: as far as they are known.
    :param reason: why so many.
    :param max_model_len: the engine argument that the job sets: -1 lets vLLM measure, and ``None`` leaves the
        user's or the model's own.
    :param problem: why no GPU can hold what is needed, as one sentence; empty if one may.
    """

    tokens: int
    reason: str
    max_model_len: int | None = None
    problem: str = ""

    def shown(self) -> dict[str, object]:
        """Value and reason, for the manifest and for `raybatch plan`."""
        value = self.max_model_len or self.tokens
        return {"max_model_len": {"value": value, "reason": self.reason}}


@dataclass(frozen=True)
class AskedContext:
    """What a job asks of the context.

    :param own: tokens of the context without this job's choice, as vLLM reads it from the model's config.
    :param needed: tokens of the longest counted prompt with its response; 0 if none was counted.
    :param decides: whether the context's length decides responses, so that it may not be derived.
    """

    own: int
    needed: int
    decides: bool


def context_length(
    model: ModelSizes | None,
    engine_args: Mapping[str, Any],
    asked: AskedContext,
    gpus: Sequence[Gpu],
    gpus_of_a_node: int = 1,
) -> ContextLength:
    """The context length of a job's engines on GPUs.

    :param model: ``None`` if its config tells too little.
    :param gpus: all types that replicas may get; none if one is not known.
    """
    if engine_args.get("max_model_len") is not None:
        return ContextLength(asked.own, "set in engine_args")
    found = [_Room.of(model, engine_args, asked.own, gpu) for gpu in gpus] if model is not None else []
    rooms = [room for room in found if room is not None]
    if model is None or not rooms or len(rooms) < len(found):
        unknown = "the model's sizes" if model is None else "an engine argument" if found else "the GPU"
        return ContextLength(asked.own, f"the model's own; whether it fits can't be told from {unknown}")
    tightest = min(rooms, key=lambda room: room.likely)
    if tightest.likely >= asked.own:
        return ContextLength(asked.own, "the model's own, which fits; a smaller one would free no memory")
    widest = max(rooms, key=lambda room: room.most)
    return _shorter(tightest, widest, asked, gpus_of_a_node)


def context_on_cpus(
    model: ModelSizes | None, engine_args: Mapping[str, Any], asked: AskedContext
) -> ContextLength:
    """The context length of a job's engines on CPUs, whose cache depends on the free memory of each node."""
    if engine_args.get("max_model_len") is not None:
        return ContextLength(asked.own, "set in engine_args")
    given = {**engine_args, "max_model_len": asked.own}
    sizes = None if model is None else sizes_of(given, model.shape, None)
    if model is None or sizes is None or asked.decides:
        return ContextLength(asked.own, "the model's own")
    row = _bytes_of_row(model, replace(sizes, cache_bytes=max(4, sizes.cache_bytes)), asked.own)
    if row <= (sizes.fixed_cache or _ROW_ON_CPUS):
        return ContextLength(asked.own, "the model's own")
    why = f"the model's own, or what vLLM's cache holds: a row may take up to {gib(row)} of memory"
    return ContextLength(asked.own, why, MEASURED)


@dataclass(frozen=True)
class _Room:
    """The longest rows that one type of GPU may hold.

    :param loose: sizes of the smallest cache that a row may take.
    :param sure: tokens, with a margin for what the arithmetic may miss.
    :param likely: by the arithmetic.
    :param most: with nothing but weights beside the cache, on the largest product of this name.
    """

    gpu: Gpu
    model: ModelSizes
    sizes: EngineSizes
    loose: EngineSizes
    sure: int
    likely: int
    most: int

    @classmethod
    def of(cls, model: ModelSizes, engine_args: Mapping[str, Any], own: int, gpu: Gpu) -> _Room | None:
        """``None`` where an engine argument has effects that are not followed."""
        sizes = sizes_of({**engine_args, "max_model_len": own}, model.shape, gpu)
        if sizes is None:
            return None
        # A quantised checkpoint may say that its cache is, too.
        says_more = model.shape.stored_bits is not None and engine_args.get("kv_cache_dtype") in {
            None,
            "auto",
        }
        loose = replace(sizes, cache_bytes=1) if says_more else sizes
        cache = model.memory(sizes, gpu.memory).cache
        sure, likely = (_longest_row(model, sizes, one, own) for one in (cache - _MARGIN, cache))
        most = _longest_row(model, loose, _most_cache(model, sizes, gpu), own)
        return cls(gpu, model, sizes, loose, sure, likely, most)


def _shorter(tightest: _Room, widest: _Room, asked: AskedContext, gpus_of_a_node: int) -> ContextLength:
    tokens = tightest.likely or asked.own
    own, room = f"the model's own {count_of(asked.own, 'token')}", _in_words(tightest)
    if asked.decides:
        what = f"the model's own context of {count_of(asked.own, 'token')}"
        problem = _problem(widest, what, asked.own, gpus_of_a_node) if widest.most < asked.own else ""
        return ContextLength(asked.own, f"the model's own; {room}", problem=problem)
    longest = f"the longest prompt counted, {count_of(asked.needed, 'token')} with its response,"
    if asked.needed > widest.most:
        problem = _problem(widest, longest, asked.needed, gpus_of_a_node)
        return ContextLength(tokens, room, MEASURED, problem)
    sure = tightest.sure // _STEP * _STEP
    if widest.most >= asked.own or sure < max(asked.needed, 1):
        why = f"what vLLM's cache holds: {room}, and {own} may not fit"
        if asked.needed > tightest.likely:
            remedies = ", or ".join(_remedies(tightest, asked.needed, gpus_of_a_node))
            why = f"{why}; {longest} may be a dead letter unless you {remedies}"
        return ContextLength(tokens, why, MEASURED)
    row = gib(_bytes_of_row(tightest.model, tightest.sizes, asked.own))
    return ContextLength(sure, f"surely fits: {own} take {row} of KV cache, and {room}", sure)


def _in_words(room: _Room) -> str:
    if not room.likely:
        return f"the smallest {room.gpu.name} does not hold the weights"
    return f"{room.gpu.name} holds about {tokens_in_words(room.likely)}"


def _problem(room: _Room, what: str, tokens: int, gpus_of_a_node: int) -> str:
    """That no GPU holds so many tokens, with the arithmetic."""
    model, sizes, gpu = room.model, room.loose, room.gpu
    remedies = _remedies(room, tokens, gpus_of_a_node)
    takes = "takes" if sizes.gpus == 1 else f"takes on each of a replica's {count_of(sizes.gpus, 'GPU')}"
    return (
        f"max_model_len: {what} {takes} {gib(_bytes_of_row(model, sizes, tokens))} of KV cache, and at most "
        f"{gib(max(0, _most_cache(model, sizes, gpu)))} are left for it (gpu_memory_utilization "
        f"{sizes.utilization:g} of {gpu.name}, at most {gib(gpu.largest)}, less "
        f"{gib(weights_of_gpu(model.shape, sizes, model.stored))} of weights); {', or '.join(remedies)}."
    )


def _remedies(room: _Room, tokens: int, gpus_of_a_node: int) -> list[str]:
    whole = replace(room.gpu, memory=room.gpu.largest)
    found = list(ways_to_hold(room.model, room.sizes, whole, gpus_of_a_node, tokens))
    if room.likely:
        most = int(float(f"{0.95 * room.likely:.3g}"))
        found.append(f"set max_model_len in engine_args to at most {most:,}, which longer rows exceed")
    return [*found, "choose a smaller model or larger GPUs"]


def _most_cache(model: ModelSizes, sizes: EngineSizes, gpu: Gpu) -> int:
    if sizes.fixed_cache is not None:
        return sizes.fixed_cache
    weights = weights_of_gpu(model.shape, sizes, model.stored)
    return int(sizes.utilization * gpu.largest - weights / (CLEARLY if model.shape.needs_files else 1))


def _longest_row(model: ModelSizes, sizes: EngineSizes, cache: int, own: int) -> int:
    """Tokens of the longest row that a cache of so many bytes holds, at most `own`."""
    low, high = 0, own
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes_of_row(model, sizes, middle) <= cache:
            low = middle
        else:
            high = middle - 1
    return low


def _bytes_of_row(model: ModelSizes, sizes: EngineSizes, tokens: int) -> int:
    """Of the KV cache, on one GPU."""
    return model.row(replace(sizes, max_model_len=tokens))
