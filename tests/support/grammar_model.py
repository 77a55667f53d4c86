# SPDX-License-Identifier: Apache-2.0
"""The choice among tokens that vLLM's grammar of structured output allows, without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgrammar


class GrammarModel:
    """Draws tokens of a Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._sizes = [len(text) for text in info.decoded_vocab]

    def begin(self, choices: Sequence[str]) -> Any:
        """Return a matcher of the choices."""
        escaped = (choice.replace("\\", "\\\\").replace('"', '\\"') for choice in choices)
        grammar = "root ::= " + " | ".join(f'"{choice}"' for choice in escaped)  # as vLLM makes it
        return xgrammar.GrammarMatcher(self._compiler.compile_grammar(grammar))

    def next(self, matcher: Any, chance: random.Random, eager: float) -> int:
        """Draw the next token.

        :param eager: probability of one of the longest tokens, 0 to 1.
        """
        mask = xgrammar.allocate_token_bitmask(1, len(self._sizes))
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: len(self._sizes)]).tolist()
        if chance.random() < eager:
            longest = max(self._sizes[number] for number in allowed)
            allowed = [number for number in allowed if self._sizes[number] == longest]
        chosen = chance.choice(allowed)
        assert matcher.accept_token(chosen)
        return int(chosen)
