# SPDX-License-Identifier: Apache-2.0
"""Texts, chunks of texts and lists of texts become token ids."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.engine.text_encoder import (
    Chunks,
    ListEncoder,
    Offsets,
    TextEncoder,
    excerpt,
    spans,
    text_encoder,
    tokens_around,
)
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec


def places(text: str, token: str) -> Offsets:
    """Where the tokens of a text lie, by a pattern of them."""
    return [found.span() for found in re.finditer(token, text)]


def cut(text: str, offsets: Offsets, room: int, overlap: int = 0) -> list[str]:
    found = spans(text, offsets, room, overlap)
    return [excerpt(text, text, offsets, first, stop)[0] for first, stop in found]


@pytest.mark.parametrize(
    ("room", "overlap", "chunks"),
    [
        (6, 0, ["one two", "three", "four"]),
        (8, 0, ["one two", "three", "four"]),
        (9, 0, ["one two", "three four"]),
        (12, 0, ["one two three", "four"]),
        (9, 3, ["one two", "two three", "four"]),
        (99, 0, ["one two three four"]),
    ],
)
def test_a_chunk_ends_before_a_word_where_one_begins(room: int, overlap: int, chunks: list[str]) -> None:
    """Tokens of letters, without those of white space as BERT's."""
    text = "one two three four"
    assert cut(text, places(text, r"\S"), room, overlap) == chunks


def test_words_longer_than_a_chunk_are_cut() -> None:
    text = "a Donaudampfschifffahrt b"
    assert cut(text, places(text, r"\S"), 8) == ["a Donauda", "mpfschif", "ffahrt b"]


def test_no_chunk_begins_inside_of_a_character() -> None:
    """Byte-level tokens of one character have its place, each."""
    text = "東京都庁舎"
    offsets = [(place, place + 1) for place in range(5) for _ in range(3)]
    assert list(spans(text, offsets, 7, 0)) == [(0, 6), (6, 12), (12, 15)]
    assert list(spans(text, offsets, 7, 3)) == [(0, 6), (3, 9), (6, 12), (9, 15)]
    assert list(spans(text, offsets, 2, 0))[:2] == [(0, 2), (2, 4)]  # no other way is left


def test_white_space_alone_is_no_chunk() -> None:
    text = f"a{' ' * 9}b"
    assert cut(text, places(text, "."), 3) == ["a", "b"]
    assert cut("  ", places("  ", "."), 3) == []


def test_excerpts_say_where_they_begin() -> None:
    text = "ab  cd \nef"
    assert excerpt(text, text.upper(), places(text, r"\S"), 2, 4) == ("CD", 4)


def test_characters_without_a_token_are_in_a_chunk() -> None:
    """Tokenizers leave accents out that are characters of their own, as in Hindi."""
    text = "\u0301ab\u0301 cd\u0301"
    assert cut(text, places(text, "[a-d]"), 2) == ["\u0301ab\u0301", "cd\u0301"]


@given(
    st.text("ab c\n東", min_size=1, max_size=60),
    st.sampled_from([r"\S", r".|\n", r"\S+", r"\s?\S+"]),
    st.integers(1, 9),
    st.data(),
)
def test_each_token_of_a_text_is_in_a_chunk(text: str, token: str, room: int, data: st.DataObject) -> None:
    offsets = places(text, token)
    overlap = data.draw(st.integers(0, room // 2 if room > 1 else 0))
    found = list(spans(text, offsets, room, overlap))
    assert all(first < stop <= first + room for first, stop in found)
    firsts, stops = zip(*found, strict=True) if found else ((), ())
    assert list(firsts) == sorted(set(firsts))
    assert list(stops) == sorted(set(stops))
    covered = {place for first, stop in found for place in range(first, stop)}
    words = {place for place, (start, stop) in enumerate(offsets) if text[start:stop].strip()}
    assert words <= covered
    for stop, first in zip(stops, firsts[1:], strict=False):
        assert stop - first <= overlap


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


def list_encoder(**fields: Any) -> Any:
    of = spec(model_task="embed", format="openai_batch", prompt=None, **fields)
    return pooling_encoder(of, Words(), SimpleNamespace(get_vocab_size=lambda: 128, encoder_config=None))


def several(*texts: str) -> Request:
    return Request(messages=[{"role": "user", "content": text} for text in texts])


def test_each_text_of_a_list_has_its_tokens() -> None:
    made = list_encoder()
    assert isinstance(made, ListEncoder)
    one, both, other = made.encode([Request(prompt="a"), several("b", "cd"), Request(prompt="e")])
    assert (one, other) == ([1, 97, 2], [1, 101, 2])
    assert isinstance(both, Chunks)
    assert [(chunk.text, chunk.ids, chunk.tokens) for chunk in both.chunks] == [
        ("b", [1, 98, 2], 3),
        ("cd", [1, 99, 100, 2], 4),
    ]
    assert made.fitted(several("b", "cd"), both, 4, None) is both
    assert (made.longest(one), made.longest(both)) == (3, 4)


def test_a_bad_text_fails_its_list_alone() -> None:
    bad, good = list_encoder().encode([several("a", "é"), several("a", "b")])
    assert isinstance(bad, RowFailure)
    assert isinstance(good, Chunks)


def test_a_long_text_of_a_list_fails_or_is_cut() -> None:
    request = several("a", "bcd")
    (ids,) = list_encoder().encode([request])
    failure = list_encoder().fitted(request, ids, 4, None)
    assert isinstance(failure, RowFailure)
    assert "the model takes 4" in failure.reason
    cut = list_encoder(on_overlong="truncate").fitted(request, ids, 4, None)
    assert [chunk.ids for chunk in cut.chunks] == [[1, 97, 2], [1, 98, 99, 2]]
