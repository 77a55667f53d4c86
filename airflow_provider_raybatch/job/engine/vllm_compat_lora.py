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


class AdapterFit:
    """Extends each worker of vLLM (`worker_extension_cls`) by a look at the modules that have adapters."""

    model_runner: Any

    def raybatch_fit(self, number: int) -> dict[str, list[str]] | None:
        """Compare an adapter that was added with this worker's part of the model.

        :returns: names of modules: of the model's those that `take` weights of the adapter, those of another
            `size` than these, and those that it `has`, as adapters name them; of the adapter's those that are
            `left` out. ``None`` if this vLLM can't be asked.
        """
        try:
            manager = self.model_runner.lora_manager._adapter_manager
            adapter = manager.get_adapter(number)
            taken = {name: manager._get_lora_layer_weights(adapter, name) for name in manager.modules}
            taken = {name: weights for name, weights in taken.items() if weights is not None}
            used = set(map(id, taken.values()))
            # Some experts have two adapters, and vLLM keeps the second one under this name.
            own = {name: one for name, one in adapter.loras.items() if not name.endswith(".base_layer")}
            return {
                "take": list(taken),
                "size": [name for name, one in taken.items() if not _is_of_size(manager.modules[name], one)],
                "left": [name for name, one in own.items() if id(one) not in used],
                "has": [one for name in manager.modules for one in manager.packed_modules.get(name, [name])],
            }
        except (AttributeError, TypeError):
            return None


FIT_CLASS = f"{AdapterFit.__module__}.{AdapterFit.__qualname__}"


def _is_of_size(module: Any, weights: Any) -> bool:
    """Whether a layer takes all of these weights: vLLM takes smaller ones for the first of its rows."""
    if not hasattr(module.base_layer, "input_size"):  # experts, and embeddings, which are padded
        return True
    inputs, outputs = _list(weights.lora_a), _list(weights.lora_b)
    if any(one is not None and one.shape[-1] != module.base_layer.input_size for one in inputs):
        return False
    parts = [one.shape[-2] for one in module.lora_b_stacked]
    if module.tp_size > 1:  # heads may be repeated
        return True
    if len(outputs) != len(parts):  # some weights are for several parts
        return any(one is None for one in outputs) or sum(one.shape[0] for one in outputs) == sum(parts)
    return all(one is None or one.shape[0] == rows for one, rows in zip(outputs, parts, strict=True))


def _list(weights: Any) -> list[Any]:
    return weights if isinstance(weights, list) else [weights]


async def fits(llm: Any, number: int) -> list[dict[str, list[str]]]:
    """What each worker finds of an adapter, see :class:`AdapterFit`; empty where they can't tell."""
    if llm.vllm_config.parallel_config.worker_extension_cls != FIT_CLASS:  # the user's own
        return []
    found = await llm.collective_rpc("raybatch_fit", args=(number,))
    return [] if None in found else list(found)
