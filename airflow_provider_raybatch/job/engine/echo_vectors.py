# SPDX-License-Identifier: Apache-2.0
"""Vectors without a model, for a dry run: texts with words in common have vectors that are near."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.engine.text_chunks import TextChunk, excerpt, spans

Vector: TypeAlias = npt.NDArray[np.float32]


def vector_of(words: Sequence[str], size: int, pooling: Mapping[str, Any]) -> Vector:
    """The sum of the words' vectors, the same on each machine.

    :param size: numbers of a vector.
    :param pooling: vLLM's `dimensions` keep the first numbers; the length is 1 unless `use_activation` is
        ``False``.
    """
    whole: Vector = np.zeros(size, np.float32)
    for word in words:
        whole += _of_word(word.lower(), size)
    vector = whole[: pooling.get("dimensions", size)]
    length = float(np.linalg.norm(vector))
    if pooling.get("use_activation") is False or length == 0.0:
        return vector
    return vector / np.float32(length)


def chunks_of(text: str, chunk_tokens: int, overlap: int) -> list[TextChunk]:
    """The chunks of a text, where a word counts as a token."""
    places = [(word.start(), word.end()) for word in re.finditer(r"\S+", text)]
    found = []
    for first, stop in spans(text, places, chunk_tokens, overlap):
        words, start = excerpt(text, text, places, first, stop)
        found.append(TextChunk(words, start, stop - first))
    return found


@functools.lru_cache(4096)
def _of_word(word: str, size: int) -> Vector:
    numbers = np.frombuffer(hashlib.shake_128(word.encode("utf-8", "replace")).digest(size), np.int8)
    return numbers.astype(np.float32)
