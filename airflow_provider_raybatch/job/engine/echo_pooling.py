# SPDX-License-Identifier: Apache-2.0
"""Answers of pooling tasks without a model: texts with words in common have vectors that are near."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import too_long
from airflow_provider_raybatch.job.engine.text_encoder import TextChunk, excerpt, spans
from airflow_provider_raybatch.job.request.messages import pair_of, text_of
from airflow_provider_raybatch.job.row import Request, RowFailure

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


Words: TypeAlias = Sequence[str]

_SPREAD = np.float32(64)
"""What the numbers of words are divided by, for probabilities that are not all near 0 and 1."""
_STEEP = np.float32(4)
"""What the likeness of a pair is multiplied by before its sigmoid."""


@dataclass(frozen=True)
class EchoPooling:
    """The numbers of a job's texts.

    :param context: words of a text that fit.
    :param size: of a vector.
    :param names: of the labels.
    """

    spec: BatchInferenceSpec
    context: int
    size: int
    names: Sequence[str]

    @property
    def labels(self) -> Sequence[str]:
        """Names of the numbers."""
        return self.names if self.spec.model_task == "classify" else ()

    def chunks(self, request: Request) -> list[TextChunk]:
        """Those of its text, where the job cuts texts; or the texts of a line's list; else none."""
        if self.spec.asks_by_lines and request.messages is not None:
            return [TextChunk(text, 0, len(text.split())) for text in texts_of(request)]
        if self.spec.chunk_tokens is None:
            return []
        return chunks_of(request.prompt or "", self.spec.chunk_tokens, self.spec.chunk_overlap_tokens)

    def fitted(self, request: Request) -> tuple[list[tuple[Words, Words]], int] | RowFailure:
        """The words of each query (empty where there is none) and text, and how many were cut off."""
        query, texts = pair_of(request) if self.spec.compares else ("", [" ".join(texts_of(request))])
        asked, cut = query.split(), 0
        pairs: list[tuple[Words, Words]] = []
        for words in map(str.split, texts):
            room, whole = self.context - len(asked), len(asked) + len(words)
            if whole > self.context and (self.spec.on_overlong != "truncate" or room < 1):
                return too_long(whole, self.context)
            cut += max(0, len(words) - room)
            pairs.append((asked, words[:room]))
        return pairs, cut

    def of(self, pairs: Sequence[tuple[Words, Words]]) -> Vector:
        """The numbers of a row, the same on each machine; texts are near that have words in common."""
        if self.spec.compares:
            return self._activated(_STEEP * np.array([_likeness(*pair) for pair in pairs], np.float32), 1)
        (_, words), *_ = pairs
        if self.spec.model_task == "classify":
            count = len(self.names)
            return self._activated(vector_of(words, count, {"use_activation": False}) / _SPREAD, count)
        return vector_of(words, self.size, self.spec.pooling)

    def _activated(self, logits: Vector, labels: int) -> Vector:
        """As vLLM: softmax over the labels, and of a single one the sigmoid."""
        if self.spec.pooling.get("use_activation") is False:
            return logits
        if labels == 1:
            return 1 / (1 + np.exp(-logits))
        powers: Vector = np.exp(logits - logits.max())
        return powers / powers.sum()


def texts_of(request: Request) -> list[str]:
    """The raw prompt, or the text of each message."""
    if request.messages is None:
        return [request.prompt or ""]
    return [text_of(message.get("content")) for message in request.messages]


def _likeness(query: Words, document: Words) -> float:
    one, other = (vector_of(words, 64, {}) for words in (query, document))
    return float(one @ other)
