# SPDX-License-Identifier: Apache-2.0
"""A vision-language model of a real architecture, small and with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import small_models

PLACEHOLDER = "<image>"
CONTEXT = 512
_TILE, _TILES = 32, 2
"""Edge of the squares into which an image is cut, and how many lie along its longer side."""
_PATCH, _SHUFFLED = 8, 2
_TOKENS = (_TILE // _PATCH // _SHUFFLED) ** 2
"""Of a tile."""
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def vision_model(folder: Path) -> str:
    """Save an Idefics3, whose processor needs no torchvision."""
    import torch
    import transformers
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    words = _tokenizer()
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.3}
    text: dict[str, Any] = {
        **layers,
        "model_type": "llama",
        "vocab_size": len(words),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "pad_token_id": words.pad_token_id,
        "bos_token_id": words.cls_token_id,
        "eos_token_id": words.sep_token_id,
    }
    vision = {
        **layers,
        "hidden_size": 64,
        "intermediate_size": 128,
        "image_size": _TILE,
        "patch_size": _PATCH,
    }
    config = transformers.Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=_SHUFFLED,
        image_token_id=words.convert_tokens_to_ids(PLACEHOLDER),
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(20261127)
    transformers.Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": _TILES * _TILE}, max_image_size={"longest_edge": _TILE}
    )
    transformers.Idefics3Processor(
        images, words, image_seq_len=_TOKENS, chat_template=TEMPLATE
    ).save_pretrained(folder)
    return str(folder)


def _tokenizer() -> Any:
    words = small_models.tokenizer(has_token_types=False, is_of_encoder=False)
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    of_images = [PLACEHOLDER, "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *tiles]
    words.add_special_tokens({"additional_special_tokens": of_images})
    words.chat_template = TEMPLATE
    words.eos_token = words.sep_token
    return words
