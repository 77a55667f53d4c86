# SPDX-License-Identifier: Apache-2.0
"""The names of vLLM's images that vLLM does not promise to keep, as in ``vllm_compat``."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
