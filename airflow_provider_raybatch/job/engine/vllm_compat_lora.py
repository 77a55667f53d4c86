# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM for adapters (LoRA) that vLLM does not promise to keep."""

from __future__ import annotations

from typing import Any, get_args


def lora_request(name: str, number: int, folder: str) -> Any:
    """What a request and the engine's own calls name an adapter by.

    :param name: cached prefixes are kept apart by it.
    :param number: the engine knows adapters by it alone, at least 1.
    """
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, folder)


def lora_ranks() -> tuple[int, ...]:
    """Values that vLLM takes for ``max_lora_rank``."""
    from vllm.config.lora import MaxLoRARanks

    return get_args(MaxLoRARanks)
