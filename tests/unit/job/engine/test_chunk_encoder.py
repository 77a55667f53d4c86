# SPDX-License-Identifier: Apache-2.0
"""Chunks of texts as token ids, with tokenizers of Hugging Face."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.engine.text_encoder import ChunkEncoder
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.approved import AssertSentences
from tests.support.specs import spec
from tests.unit.job.engine.test_text_encoder import Words

pytest.importorskip("transformers")


def bert() -> Any:
    """A tokenizer of letters in lower case, with BERT's tokens around a text."""
    import tokenizers
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def of_bytes() -> Any:
    """A byte-level tokenizer without special tokens."""
    from tests.support.chat_models import ChatModel

    return ChatModel("", ("<s>",), (), "").tokenizer()


def encoder(tokenizer: Any, context: int = 64, lowers: bool = False, **fields: Any) -> ChunkEncoder:
    config = SimpleNamespace(
        max_model_len=context, encoder_config={"do_lower_case": lowers}, get_vocab_size=lambda: 256
    )
    made = pooling_encoder(spec(model_task="embed", **fields), tokenizer, config)
    assert isinstance(made, ChunkEncoder)
    return made


def texts(made: ChunkEncoder, text: str) -> list[tuple[str, int, int]]:
    (ids,) = made.encode([Request(prompt=text)])
    assert ids == [number for chunk in ids.chunks for number in chunk.ids]
    assert all(chunk.tokens == len(chunk.ids) for chunk in ids.chunks)
    return [(chunk.text, chunk.start, chunk.tokens) for chunk in ids.chunks]


def test_special_tokens_are_part_of_a_chunk() -> None:
    """And where chunks end between words, each has the tokens of its text alone."""
    tokenizer = bert()
    made = encoder(tokenizer, chunk_tokens=8)
    assert texts(made, "Abc de  fgh\nij") == [("Abc de", 0, 7), ("fgh\nij", 8, 7)]
    (ids,) = made.encode([Request(prompt="Abc de  fgh\nij")])
    assert [chunk.ids for chunk in ids.chunks] == [tokenizer(one.text)["input_ids"] for one in ids.chunks]


def test_chunks_have_whole_characters_of_a_byte_level_text() -> None:
    """Each character here is three or four tokens, and a chunk of seven has two of them at most."""
    text = "東京都庁🦊舎"
    made = encoder(of_bytes(), chunk_tokens=7)
    assert texts(made, text) == [("東京", 0, 6), ("都庁", 2, 6), ("🦊舎", 4, 7)]


def test_overlapping_chunks_have_words_in_common() -> None:
    made = encoder(bert(), chunk_tokens=8, chunk_overlap_tokens=3)
    assert [text for text, _, _ in texts(made, "ab cd ef gh ij")] == ["ab cd ef", "ef gh ij"]


def test_a_normalised_text_is_cut_as_it_was_written() -> None:
    """The tokenizer takes accents away, and the model's config makes two characters of a capital."""
    assert texts(encoder(bert(), chunk_tokens=5), "Ünö Äbc") == [("Ünö", 0, 5), ("Äbc", 4, 5)]
    lowers = encoder(bert(), chunk_tokens=5, lowers=True)
    assert texts(lowers, "UNO Abc") == [("UNO", 0, 5), ("Abc", 4, 5)]
    assert [text for text, _, _ in texts(lowers, "İno Abc")] == ["i̇no", "abc"]


def test_a_text_that_makes_no_tokens_fails_alone() -> None:
    made, bad = encoder(bert(), chunk_tokens=5).encode([Request(prompt="ab"), Request(prompt="\x00")])
    assert isinstance(made, list)
    assert bad == RowFailure("tokenize", "the text has no token but white space, and has no vector")


def test_a_token_that_the_model_lacks_fails_its_row() -> None:
    made = encoder(of_bytes(), chunk_tokens=7)
    made._vocabulary = 65
    failed, good = made.encode([Request(prompt="ab" * 9), Request(prompt="!" * 9)])
    assert isinstance(failed, RowFailure)
    assert failed.step == "tokenize"
    assert isinstance(good, list)


def test_a_text_in_chunks_is_never_too_long() -> None:
    made = encoder(bert(), context=5, chunk_tokens=5)
    ids = made.encode([Request(prompt="ab " * 9)])[0]
    assert made.fitted(Request(prompt=""), ids, 5, None) == ids
    assert made.longest(ids) == 4 < len(ids)


def test_chunks_that_the_model_can_not_take_are_refused(assert_sentences: AssertSentences) -> None:
    def refused(kind: str, **fields: Any) -> None:
        encoder({"fast": bert, "slow": Words}[kind](), **fields)

    assert_sentences(refused, PreflightError)
