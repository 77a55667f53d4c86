# SPDX-License-Identifier: Apache-2.0
"""What an echo answers beside its prompt: vectors, objects that fit a JSON schema, colours of images.

Texts with words in common have vectors that are near.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.response_schema import followed
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


_DEEPEST = 8
"""Levels of nesting, after which a list is empty and anything else null: schemas may refer to themselves."""


def fitting(schema: Any, rng: Random, words: Sequence[str]) -> Any:
    """Knows types, enums, properties, items, references, a union's first option, bounds of texts and numbers.

    All else is ignored.

    :param rng: decides what the schema leaves open.
    :param words: texts are made of these; at least one.
    """
    return _Fitting(schema, rng, words).value(schema, _DEEPEST)


class _Fitting:
    def __init__(self, root: Any, rng: Random, words: Sequence[str]) -> None:
        self._root, self._rng, self._words = root, rng, words

    def value(self, part: Any, depth: int) -> Any:
        schema, _ = followed(part, self._root)
        if not isinstance(schema, dict):
            return None
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        options = schema.get("anyOf") or schema.get("oneOf")
        if options and "type" not in schema and "properties" not in schema:
            return self.value(options[0], depth)
        kinds = schema.get("type", "object" if "properties" in schema else "null")
        kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
        if kind in {"object", "array"}:
            return self._nested(kind, schema, depth - 1)
        return self._scalar(kind, schema)

    def _nested(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        if kind == "array":
            items = max(1, schema.get("minItems", 1)) if depth > 0 else 0
            return [self.value(schema.get("items"), depth) for _ in range(items)]
        if depth < 0:
            return None
        return {name: self.value(inner, depth) for name, inner in schema.get("properties", {}).items()}

    def _scalar(self, kind: Any, schema: dict[str, Any]) -> Any:
        if kind == "string":
            text = " ".join(self._rng.choices(self._words, k=8))
            return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
        if kind in {"integer", "number"}:
            return self._number(schema, kind == "integer")
        return self._rng.random() < 0.5 if kind == "boolean" else None

    def _number(self, schema: dict[str, Any], is_whole: bool) -> float:
        given = {name: value for name, value in schema.items() if not isinstance(value, bool)}  # of draft 4
        highs = [given[name] for name in ("maximum", "exclusiveMaximum") if name in given]
        lows = [given[name] for name in ("minimum", "exclusiveMinimum") if name in given]
        least = max(lows, default=min([0, *(high - 1 for high in highs)]))
        most = min(highs, default=least + 9)
        if not is_whole:
            return self._rng.uniform(least, most)
        first, last = math.ceil(least), math.floor(most)
        first += given.get("exclusiveMinimum") == first
        last -= given.get("exclusiveMaximum") == last
        return self._rng.randint(first, max(first, last))


def seen_in(pixels: Sequence[npt.NDArray[np.uint8]]) -> tuple[str, ...]:
    """A word for each image, such as ``[640x480 #20a0ff]``; a blank in it does not part it.

    :param pixels: of each image: height x width x 3, RGB.
    """
    return tuple(map(_word, pixels))


def _word(pixels: npt.NDArray[np.uint8]) -> str:
    height, width, _ = pixels.shape
    red, green, blue = (round(float(mean)) for mean in pixels.mean(axis=(0, 1)))
    return f"[{width}x{height} #{red:02x}{green:02x}{blue:02x}]"
