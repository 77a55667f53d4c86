# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters in vLLM's types, and token ids that a model lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.request_values import (
    absent_bos,
    check_token_ids,
    surplus_tokens,
    tidied,
    within,
)

TYPES = {
    "temperature": float,
    "top_k": int,
    "seed": "int | None",
    "max_tokens": "int | None",
    "stop_token_ids": "list[int] | None",
    "stop": "str | list[str] | None",
    "logit_bias": "dict[int, float] | None",
    "structured_outputs": "vllm.sampling_params.StructuredOutputsParams | None",
}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param({"logit_bias": {"2": 100, "7": -1.5}}, {"logit_bias": {2: 100, 7: -1.5}}, id="JSON"),
        pytest.param({"logit_bias": {"2": None, "7": 1.0}}, {"logit_bias": {7: 1.0}}, id="a struct"),
        pytest.param({"logit_bias": [("2", 1.0)]}, {"logit_bias": {2: 1.0}}, id="a map"),
        pytest.param({"logit_bias": None}, {}, id="no bias"),
        pytest.param({"seed": 7.0, "top_k": 5.0}, {"seed": 7, "top_k": 5}, id="whole numbers as floats"),
        pytest.param({"seed": 7.5}, {"seed": 7.5}, id="a broken one is vLLM's to refuse"),
        pytest.param({"temperature": 1.0}, {"temperature": 1.0}, id="a number that may be broken"),
        pytest.param({"stop_token_ids": [5.0, None]}, {"stop_token_ids": [5]}, id="ids in a list"),
        pytest.param({"stop": ["a", None]}, {"stop": ["a"]}, id="null in a list"),
        pytest.param({"max_tokens": None, "seed": None}, {"max_tokens": None}, id="no limit"),
        pytest.param(
            {"structured_outputs": {"choice": ["a"], "regex": None}},
            {"structured_outputs": {"choice": ["a"]}},
            id="kinds of other rows",
        ),
        pytest.param({"structured_outputs": {"choice": None, "regex": None}}, {}, id="none of its kinds"),
        pytest.param({"structured_outputs": {}}, {"structured_outputs": {}}, id="vLLM's to refuse"),
    ],
)
def test_values(given: dict[str, Any], made: dict[str, Any]) -> None:
    found = tidied(given, TYPES)
    assert found == made
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in made.items()
    }


@pytest.mark.parametrize("biases", [{"yes": 1}, {"": 1}, 3, ["yes"], {3.7: 1}, {True: 1}])
def test_a_key_that_is_no_token(biases: Any) -> None:
    with pytest.raises(ValueError, match=r"^logit_bias: .* give"):
        tidied({"logit_bias": biases}, TYPES)


WORDS = {"a": 0, " a": 1, "<|im_end|>": 100, "<|im_start|>": 101}


class Tokenizer:
    """One word is one token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [WORDS[text]] if text in WORDS else [0, WORDS[text.strip()]]

    def get_vocab(self) -> dict[str, int]:
        return WORDS


@pytest.mark.parametrize(
    ("sampling", "unknown"),
    [
        ({"logit_bias": {0: 1, 99: 1}, "stop_token_ids": [7], "temperature": 0}, None),
        ({"logit_bias": {7: 1, 100: 1}}, "logit_bias has the token id 100"),
        ({"allowed_token_ids": [3, -1]}, "allowed_token_ids has the token id -1"),
        ({"stop_token_ids": None}, None),
        ({"bad_words": ["a"]}, None),
        ({"bad_words": ["a", "<|im_end|>"]}, "bad_words has the token id 100"),
    ],
)
def test_ids_of_tokens_that_the_model_lacks(sampling: dict[str, Any], unknown: str | None) -> None:
    if unknown is None:
        check_token_ids(SimpleNamespace(**sampling), Tokenizer(), 100)
    else:
        with pytest.raises(PreflightError) as caught:
            check_token_ids(SimpleNamespace(**sampling), Tokenizer(), 100)
        assert str(caught.value) == f"sampling: {unknown}, and the model has ids from 0 to 99."


@pytest.mark.parametrize(
    ("special", "constraint", "is_refused"),
    [
        ({}, {"regex": "a"}, True),
        ({}, None, False),
        ({"pad_token": "<pad>"}, {"regex": "a"}, True),
        ({"eos_token": "<end>"}, {"regex": "a"}, False),
        ({"pad_token": "</s>"}, {"regex": "a"}, False),
    ],
)
def test_a_grammar_without_an_end_is_refused(
    special: dict[str, str], constraint: dict[str, str] | None, is_refused: bool
) -> None:
    """XGrammar knows the usual ends by their texts, whatever the tokenizer says of them."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    pytest.importorskip("xgrammar")
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **special)
    params = SimpleNamespace(structured_outputs=constraint)
    if not is_refused:
        check_token_ids(params, tokenizer, 9)
        return
    with pytest.raises(PreflightError) as caught:
        check_token_ids(params, tokenizer, 9)
    assert str(caught.value) == (
        "model: its tokenizer has no eos_token, and a response under a grammar (structured_outputs, tools) "
        "can't end without it; set it in tokenizer_config.json."
    )


def test_tokens_that_the_model_lacks_are_named_in_their_order() -> None:
    assert surplus_tokens(Tokenizer(), 100) == ["<|im_end|>", "<|im_start|>"]
    assert surplus_tokens(Tokenizer(), 101) == ["<|im_start|>"]
    assert surplus_tokens(Tokenizer(), 102) == []


@pytest.mark.parametrize(
    ("adds", "chats", "absent"),
    [(True, [[5, 6], [7]], "<bos>"), (True, [[1, 6], [7]], ""), (True, [], ""), (False, [[5, 6]], "")],
)
def test_absent_bos_of_chats_is_named(adds: bool, chats: list[list[int]], absent: str) -> None:
    """Of tokenizers that begin each text with it; Qwen's, say, do not."""
    tokenizer = SimpleNamespace(
        bos_token="<bos>", bos_token_id=1, encode=lambda text: [1, 5] if adds else [5, 6]
    )
    assert absent_bos(tokenizer, chats) == absent


@pytest.mark.parametrize("said", [0, None, 8])
def test_a_config_without_a_size_refuses_no_prompt(said: int | None) -> None:
    """Where the config of a model has no `vocab_size`, vLLM says 0."""
    size = vllm_compat.vocabulary_size(SimpleNamespace(get_vocab_size=lambda: said))
    assert within([7], None, size) == [7]
