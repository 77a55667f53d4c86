# SPDX-License-Identifier: Apache-2.0
"""Token ids of a pooling model's texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.text_encoder import TextEncoder, text_encoder, tokens_around
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec


class Words:
    """A tokenizer of single letters, with tokens before and after each text."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __init__(self, before: tuple[int, ...] = (1,), after: tuple[int, ...] = (2,)) -> None:
        self.before, self.after = list(before), list(after)

    def __call__(self, text: Any, add_special_tokens: bool) -> dict[str, Any]:
        if isinstance(text, list):
            return {"input_ids": [self(one, add_special_tokens)["input_ids"] for one in text]}
        ids = [ord(letter) for letter in text]
        return {"input_ids": [*self.before, *ids, *self.after] if add_special_tokens else ids}


def encoder(of: BatchInferenceSpec | None = None, **config: Any) -> TextEncoder:
    whole = {"get_vocab_size": lambda: 256, "encoder_config": None, **config}
    return text_encoder(of or spec(model_task="embed"), Words(), SimpleNamespace(**whole))


def test_text_gets_the_tokenizers_special_tokens() -> None:
    assert encoder().encode([Request(prompt="aB")]) == [[1, 97, 66, 2]]


def test_text_is_lowered_where_the_model_asks_for_it() -> None:
    """Vectors of a text in capitals would be others than vLLM's, without an error."""
    lowers = encoder(encoder_config={"max_seq_length": 4, "do_lower_case": True})
    assert lowers.encode([Request(prompt="aB")]) == [[1, 97, 98, 2]]


def test_a_token_that_the_model_lacks_fails_its_row() -> None:
    (made,) = encoder(get_vocab_size=lambda: 98).encode([Request(prompt="abc")])
    assert isinstance(made, RowFailure)
    assert made.step == "tokenize"


@pytest.mark.parametrize("after", [(), (2,), (2, 3)])
@pytest.mark.parametrize("before", [(), (1,)])
def test_special_tokens_around_a_text_are_found(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert tokens_around(Words(before, after)) == (list(before), list(after))
