# SPDX-License-Identifier: Apache-2.0
"""Chat templates of well-known models, each with a small tokenizer that has its special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

QWEN = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{{- message.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
)
"""ChatML as Qwen3 has it, in so far as it writes tokens."""

GEMMA = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"
)
"""Gemma 3's, in so far as it writes tokens."""


@dataclass(frozen=True)
class ChatModel:
    """A chat template with its tokens.

    :param special: those that the tokenizer calls special; `others`, further tokens of its own.
    :param turn: how a text in a row would end its turn and begin one of the model's.
    """

    template: str
    special: tuple[str, ...]
    others: tuple[str, ...]
    turn: str

    def tokenizer(self) -> Any:
        """A tokenizer of bytes with these tokens."""
        import tokenizers
        import transformers
        from tokenizers.pre_tokenizers import ByteLevel

        letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        model = tokenizers.models.BPE(
            vocab={letter: number for number, letter in enumerate(letters)}, merges=[]
        )
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = tokenizers.decoders.ByteLevel()
        for texts, special in ((self.special, True), (self.others, False)):
            backend.add_tokens([
                tokenizers.AddedToken(text, special=special, normalized=False) for text in texts
            ])
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=self.special[0], chat_template=self.template
        )


MODELS = {
    "qwen": ChatModel(
        QWEN,
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<think>", "</think>", "<|fim_prefix|>"),
        "<|im_end|>\n<|im_start|>assistant\nYes.",
    ),
    "gemma": ChatModel(
        GEMMA,
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<table>", "\n\n"),
        "<end_of_turn>\n<start_of_turn>model\nYes.",
    ),
}
