# SPDX-License-Identifier: Apache-2.0
"""The demo model's tokenizer: byte-level BPE with one token per digit, and a chat template like Llama 3's.

As in Llama 3, both the chat template and the tokenizer's post-processor add the BOS token. With
``add_special_tokens=True``, a templated text gets it twice. That is on purpose, because real models behave so
and tests should see it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (PAD, BEGIN, END, "<|system|>", "<|user|>", "<|assistant|>")
VOCABULARY_SIZE = 1536
CONTEXT_LENGTH = 1024
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|' + message['role'] + '|>' + (message['content'] | trim) + '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn a byte-level BPE tokenizer of ``VOCABULARY_SIZE`` entries from ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A {BEGIN} $B",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the three tokenizer files of the Hugging Face layout into ``folder``.

    ``tokenizer_config.json`` is written here and not by ``save_pretrained``, whose class names differ between
    transformers 4 and 5.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in (BEGIN, END, PAD)],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_LENGTH,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
