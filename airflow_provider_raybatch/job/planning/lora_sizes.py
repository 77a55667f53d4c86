# SPDX-License-Identifier: Apache-2.0
"""VLLM's engine arguments for adapters (LoRA), from the adapters themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError

_MOST_AT_ONCE = 8
"""Adapters in a GPU's memory by default: each takes room for the largest rank in every layer."""
_MOST_KEPT_BYTES = 4 * 1024**3
"""Of adapters in an engine's main memory by default; others are read again from disk."""
_RIGHT_ON_CPU = (0, 33)
"""The vLLM that gives rows without an adapter none on CPUs. Earlier ones give them that of the last slot."""


def lora_args(
    ranks: Sequence[int],
    largest: int,
    given: Mapping[str, Any],
    known_ranks: Sequence[int],
    on_cpu: bool,
    vllm: str,
) -> dict[str, Any]:
    """The engine arguments that are not given, for an engine with adapters.

    :param ranks: of the adapters.
    :param largest: bytes of the largest adapter's weights; 0 if not known.
    :param given: the user's engine arguments.
    :param known_ranks: values that vLLM takes for ``max_lora_rank``.
    :param on_cpu: whether the engine runs on CPUs.
    :param vllm: its version.
    :raises PreflightError: a given one is too small for the adapters.
    """
    most, adapters = max(ranks), len(ranks)
    rank = given.get("max_lora_rank")
    if isinstance(rank, int) and rank < most:
        raise PreflightError(
            f"engine_args: max_lora_rank is {rank}, and an adapter has the rank {most}; leave it out."
        )
    needs_empty_slot = on_cpu and _parts(vllm) < _RIGHT_ON_CPU
    at_once = adapters + 1 if needs_empty_slot else min(adapters, _MOST_AT_ONCE)
    asked = given.get("max_loras", at_once)
    if needs_empty_slot and isinstance(asked, int) and asked < at_once:
        raise PreflightError(
            f"engine_args: max_loras is {asked}, and vLLM {vllm} on CPUs needs one more than there are "
            f"adapters ({at_once}), or it answers rows of the model alone with an adapter; leave it out."
        )
    kept = min(adapters, _MOST_KEPT_BYTES // largest if largest else adapters)
    derived = {
        "enable_lora": True,
        "max_lora_rank": next((one for one in sorted(known_ranks) if one >= most), most),
        "max_loras": at_once,
        "max_cpu_loras": max(kept, asked if isinstance(asked, int) else at_once),
    }
    return {name: value for name, value in derived.items() if name not in given}


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
