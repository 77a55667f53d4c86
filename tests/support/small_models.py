# SPDX-License-Identifier: Apache-2.0
"""Classifiers and cross-encoders of real architectures, small and with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = [
    "harbor", "lantern", "orchard", "copper", "meadow", "signal", "river", "quartz", "bakery", "fox",
    "red", "deep", "blue", "sea", "old", "dog",
]  # fmt: skip
LONGEST = 64
"""Tokens that each model takes."""
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:?-"


def tokenizer(has_token_types: bool = True, is_of_encoder: bool = True) -> Any:
    """A tokenizer of word pieces, with BERT's special tokens and token types, or without."""
    import tokenizers
    import transformers
    from tokenizers import normalizers, pre_tokenizers, processors

    pieces = [*_SPECIAL, *WORDS, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if is_of_encoder:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
        )
    names = ["input_ids", "token_type_ids", "attention_mask"] if has_token_types else None
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names or ["input_ids", "attention_mask"],
    )


def classifier(folder: Path, kind: str, labels: Sequence[str]) -> str:
    """Save a model of a kind (``bert``, ``modernbert``, ``qwen3``); one label makes it a cross-encoder."""
    import torch
    import transformers

    is_of_encoder = kind != "qwen3"
    words = tokenizer(has_token_types=kind == "bert", is_of_encoder=is_of_encoder)
    sizes: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": LONGEST,
        "initializer_range": 0.3,  # with the usual one, all texts have about the same numbers
        "pad_token_id": words.pad_token_id,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    if kind == "bert":
        config = transformers.BertConfig(**sizes)
        architecture = transformers.BertForSequenceClassification
    elif kind == "modernbert":
        ends = {"bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
        config = transformers.ModernBertConfig(**sizes, **ends)
        architecture = transformers.ModernBertForSequenceClassification
    else:
        config = transformers.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=64)
        architecture = transformers.Qwen3ForSequenceClassification
    torch.manual_seed(20261127)
    architecture(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)
