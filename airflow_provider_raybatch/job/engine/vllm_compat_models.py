# SPDX-License-Identifier: Apache-2.0
"""Names of vLLM that it does not promise to keep, for what some models have: adapters, images, pooling."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt


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


_KNOWN_CODE = {"transformers", "vllm"}
_STAND_IN_SIZE = (32, 32)
"""Rendering a chat needs pictures and does not look at them."""


def most_images(renderer: Any) -> int:
    """Images that a request may have, by the model and `limit_mm_per_prompt`; 0 if it takes none.

    :param renderer: of an engine, or of a model without one.
    """
    processor = getattr(renderer, "mm_processor", None)
    return 0 if processor is None else int(processor.info.allowed_mm_limits.get("image", 0))


def needs_images_to_tokenise(renderer: Any) -> bool:
    """Whether the tokenizer makes an image's tokens itself, by the image's size."""
    from vllm.utils.mistral import is_mistral_tokenizer

    return bool(is_mistral_tokenizer(renderer.tokenizer))


def adds_special_tokens(renderer: Any) -> bool:
    """Whether ``LLM.generate`` tokenises prompts of this model with the tokenizer's special tokens."""
    return bool(renderer.default_cmpl_tok_params.add_special_tokens)


def placeholder(config: Any, number: int) -> str:
    """The text that stands for an image in a prompt; empty where vLLM knows none.

    :param config: of the model.
    :param number: of the image in the prompt, from 1: some models count them.
    """
    from vllm.model_executor.model_loader import get_model_cls

    try:
        return str(get_model_cls(config).get_placeholder_str("image", number) or "")
    except (AttributeError, ValueError):  # a model without one, or one that takes no images
        return ""


def stand_in() -> dict[str, Any]:
    """A part of a message that vLLM renders as it does an image."""
    from PIL import Image

    return {"type": "image_pil", "image_pil": Image.new("RGB", _STAND_IN_SIZE)}


def with_own_processor(renderer: Any) -> Any:
    """A copy of a renderer for another thread's :func:`engine_input`, with its own processor and tokenizer.

    vLLM keeps processors by their tokenizer, and tokenizers can't be used by two threads at once. Some models
    keep theirs by other keys, or with parts that are another's.

    :raises TypeError: the copy would share a part, or one is of a model's own code, which may share anything.
    :raises Exception: it can't be loaded once more.
    """
    from vllm.multimodal import MULTIMODAL_REGISTRY

    copied = copy.copy(renderer)
    copied.mm_processor = MULTIMODAL_REGISTRY.create_processor(
        renderer.model_config, tokenizer=copy.deepcopy(renderer.tokenizer)
    )
    parts, own = (_parts(each.mm_processor.info.get_hf_processor()) for each in (renderer, copied))
    for one, other in zip(parts, own, strict=True):
        kind = type(one)
        if one is not None and (one is other or kind.__module__.partition(".")[0] not in _KNOWN_CODE):
            raise TypeError(f"{kind.__module__}.{kind.__name__}")
    return copied


def _parts(processor: Any) -> list[Any]:
    """A processor, and what it works with, as far as it has that."""
    return [processor, *(getattr(processor, name, None) for name in ("tokenizer", "image_processor"))]


def engine_input(renderer: Any, ids: list[int], pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
    """A prompt with its images, as the engine takes it; it has more tokens than `ids`.

    Not in two threads at once with one renderer: the libraries of models' processors don't allow that.

    :param ids: of the rendered text, with a placeholder for each image.
    :raises Exception: vLLM, or the model's processor, can't use them.
    """
    from PIL import Image
    from vllm.inputs import TokensPrompt

    images = [Image.fromarray(one) for one in pixels]
    prompt = TokensPrompt(prompt_token_ids=ids, multi_modal_data={"image": images})
    # The cache of processed images wants requests in the order in which it has seen them. This one does not.
    has_cache = "skip_mm_cache" in inspect.signature(renderer.process_for_engine).parameters
    return renderer.process_for_engine(prompt, time.time(), **({"skip_mm_cache": True} if has_cache else {}))


TASKS = {"embed": "embed", "classify": "classify", "score": "classify"}
"""VLLM's pooling task of each kind of task."""


def pooling_params(model_task: str, values: Mapping[str, Any], second: int | None = None) -> Any:
    """VLLM's ``PoolingParams``.

    Always with a task: without one, vLLM silently gives one vector per token.

    :param second: where tokens of type 1 begin, for a model that is told. VLLM ignores `token_type_ids` in
        the prompt, and gives wrong scores without an error.
    """
    from vllm import PoolingParams

    types = {} if second is None else {"extra_kwargs": {"compressed_token_type_ids": second}}
    return PoolingParams(task=TASKS[model_task], **values, **types)


def check_pooling_params(params: Any, config: Any) -> None:
    """Let vLLM compare pooling parameters with a model's config, into which it writes its defaults.

    :raises ValueError: the model can't do what they ask.
    """
    params.verify(config)


def labels_of(config: Any) -> Mapping[int, str]:
    """The labels in a model's config, by their numbers."""
    found = getattr(config.hf_config, "id2label", None)
    return {int(number): str(label) for number, label in (found or {}).items()}


def label_count(config: Any) -> int | None:
    """How many labels a model of this config has, if it says so.

    A language model whose head vLLM makes of the rows of some tokens has its number when an engine starts,
    and until then the two that each config has by default.
    """
    whole = config.hf_config
    text = whole.get_text_config() if hasattr(whole, "get_text_config") else whole

    def told(name: str) -> Any:
        found = getattr(whole, name, None)
        return getattr(text, name, None) if found is None else found

    if told("is_original_qwen3_reranker") or told("method") == "from_2_way_softmax":
        return 1
    tokens = told("classifier_from_token")
    if told("method") is not None and isinstance(tokens, (list, tuple)):
        return len(tokens)
    found = getattr(whole, "num_labels", None)
    return found if isinstance(found, int) else None


def separates_pairs(config: Any) -> bool:
    """Whether vLLM lets the tokeniser put a separator between the texts of a pair."""
    return bool(getattr(config, "use_sep_token", True))


async def supported_tasks(llm: Any) -> tuple[str, ...]:
    """What the model of a running async engine can do."""
    return tuple(await llm.get_supported_tasks())


def pooled(output: Any) -> npt.NDArray[np.float32]:
    """The numbers of a finished pooling request.

    :raises ValueError: vLLM reports an error of this request alone, as it does from 0.32 on.
    """
    if (error := getattr(output, "error", None)) is not None:
        raise ValueError(str(error))
    numbers: npt.NDArray[np.float32] = output.outputs.data.float().numpy()
    return numbers
