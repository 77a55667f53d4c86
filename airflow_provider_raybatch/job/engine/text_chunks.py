# SPDX-License-Identifier: Apache-2.0
"""Cut a text into chunks of so many tokens: between words where it can be, and never inside a character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.row import Response, RowFailure

CHUNKS = "chunks"
"""What a response has in `extra` beside a vector for each chunk."""
Offsets: TypeAlias = Sequence[tuple[int, int]]
"""For each token of a text, where its characters begin and end. Tokens of one character have the same."""


@dataclass(frozen=True)
class TextChunk:
    """One chunk of a text.

    :param start: where `text` begins in the whole, in characters.
    :param tokens: as many as the model gets.
    :param ids: those, special tokens included; an echo has none.
    """

    text: str
    start: int
    tokens: int
    ids: list[int] = field(default_factory=list)

    @property
    def shown(self) -> dict[str, Any]:
        """What its row in the dataset is made of."""
        return {"text": self.text, "start": self.start, "tokens": self.tokens}


def spans(text: str, offsets: Offsets, room: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `room` tokens, as first and one past the last; white space alone is left out.

    A run ends before a word that begins in its second half, if one does; else between two characters.

    :param overlap: the next run begins at most so many tokens before the end of this one, with a word if one
        begins there.
    """
    first, count = 0, len(offsets)
    while first < count:
        most = first + room
        stop = count
        if most < count:
            least = first + max(overlap, room // 2)
            stop = _border(text, offsets, range(most, least, -1)) or most
        if excerpt(text, text, offsets, first, stop)[0]:
            yield first, stop
        if stop == count:
            return
        first = _border(text, offsets, range(stop - overlap, stop + 1)) or stop


def _border(text: str, offsets: Offsets, places: Sequence[int]) -> int | None:
    """The first of some places before which no word goes on, or no character; ``None`` if there is none."""
    words = (place for place in places if _begins_word(text, offsets[place][0]))
    characters = (place for place in places if offsets[place][0] >= offsets[place - 1][1])
    return next(words, None) or next(characters, None)


def _begins_word(text: str, start: int) -> bool:
    return text[start - 1 : start].isspace() or text[start : start + 1].isspace()


def excerpt(text: str, shown: str, offsets: Offsets, first: int, stop: int) -> tuple[str, int]:
    """The text of a run of tokens without white space around it, and where it begins.

    Up to the next token: a tokenizer leaves characters out, such as accents, and they have no token.

    :param shown: the text that it is taken from; as long as `text`.
    """
    start = offsets[first][0] if first else 0
    end = max(offsets[stop - 1][1], offsets[stop][0]) if stop < len(offsets) else len(text)
    whole = shown[start:end]
    return whole.strip(), start + len(whole) - len(whole.lstrip())


def failure_of(number: int, chunk: TextChunk, failure: RowFailure, tokens: int = 0) -> RowFailure:
    """The failure of a row whose chunk of this number failed: no part of a row is delivered.

    :param tokens: that were paid for.
    """
    reason = f"chunk {number} (from character {chunk.start:,}): {failure.reason}"
    return RowFailure(failure.step, reason, tokens)


def response_of(
    chunks: Sequence[TextChunk], vectors: Sequence[npt.NDArray[np.float32]], cached: int = 0
) -> Response:
    """The response of a row, with a row of `pooled` for each chunk."""
    return Response(
        input_tokens=sum(chunk.tokens for chunk in chunks),
        cached_tokens=cached,
        pooled=np.stack(vectors),
        extra={CHUNKS: [chunk.shown for chunk in chunks]},
    )
