# SPDX-License-Identifier: Apache-2.0
"""Where texts are cut into chunks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.job.engine.text_encoder import Offsets, excerpt, spans


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
