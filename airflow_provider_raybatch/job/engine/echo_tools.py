# SPDX-License-Identifier: Apache-2.0
"""What an echo's answer has beside text: JSON, calls, reasoning, log probabilities, colours of images."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.response_schema import followed
from airflow_provider_raybatch.contract.arguments.sampling import are_asked
from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN, schemas_of
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.row import Completion, Response, TokenLogprobs

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


class EchoTools:
    """Calls the tool whose name the prompt has, with arguments that fit its schema.

    Texts in them are made of the prompt's words. With a `tool_choice` that asks for a call, it calls that
    tool, or else one by a hash of the prompt.
    """

    def __init__(self, spec: BatchInferenceSpec) -> None:
        self._schemas = schemas_of(spec.tools or ())
        self._must = spec.must_call_tools
        choice = spec.tool_choice
        self._chosen = choice["function"]["name"] if isinstance(choice, dict) else None

    def call(self, prompt: str, number: int) -> Completion | None:
        """Completion `number` with a call; ``None`` if it calls nothing."""
        name = self._chosen or next((one for one in self._schemas if one in prompt), None)
        if name is None and self._must:
            names = list(self._schemas)
            name = names[int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % len(names)]
        if name is None:
            return None
        made = fitting(self._schemas[name], random.Random(f"{number}-{prompt}"), prompt.split() or ["echo"])
        arguments = json.dumps(made or {}, ensure_ascii=False)
        call = {"name": name, "arguments": arguments}
        return Completion("", "tool_calls", max(1, len(arguments.split())), extra={TOOL_CALLS_COLUMN: [call]})


@dataclass(frozen=True)
class EchoReasoning:
    """What comes before an answer.

    :param room: words that are left for the answer; ``None`` for any number.
    """

    words: tuple[str, ...]
    room: int | None

    @classmethod
    def about(cls, prompt_words: int, budget: int | None, most: int | None) -> EchoReasoning:
        """The reasoning about a prompt.

        :param budget: the most words that it may have.
        :param most: the most words that it and the answer may have.
        """
        words = f"The prompt has {count_of(prompt_words, 'word')}.".split()[:budget]
        return cls(tuple(words[:most]), None if most is None else most - len(words))

    def alone(self, finish_reason: str) -> Completion:
        """A completion that ended before its answer began."""
        return Completion("", finish_reason, len(self.words), extra=self._extra)

    def before(self, answer: Completion) -> Completion:
        """The completion with its reasoning."""
        tokens = answer.output_tokens + len(self.words)
        return replace(answer, output_tokens=tokens, extra={**answer.extra, **self._extra})

    @property
    def _extra(self) -> dict[str, str | int]:
        return {"reasoning": " ".join(self.words), "reasoning_tokens": len(self.words)}


def with_logprobs(response: Response, prompt: str, sampling: Mapping[str, Any]) -> Response:
    """The response with the log probabilities that its request asks for.

    :param sampling: parameters of the request.
    """
    if are_asked(sampling, "logprobs"):
        most = int(sampling["logprobs"])
        completions = tuple(
            replace(one, extra={**one.extra, "logprobs": logprobs_of_words(_generated(one), most)})
            for one in response.completions
        )
        response = replace(response, completions=completions)
    if are_asked(sampling, "prompt_logprobs"):
        made = logprobs_of_words(prompt.split(), int(sampling["prompt_logprobs"]), has_first=False)
        response = replace(response, extra={**response.extra, "prompt_logprobs": made})
    return response


def _generated(completion: Completion) -> list[str]:
    """As many words as the completion has tokens."""
    before = str(completion.extra.get("reasoning") or "").split()
    words, tokens = completion.text.split(), completion.output_tokens - len(before)
    return [*before, *(words if len(words) == tokens else [completion.text] * tokens)]


def logprobs_of_words(words: Sequence[str], alternatives: int, has_first: bool = True) -> TokenLogprobs:
    """Each word is the likeliest of its place, with a probability that a hash of it decides.

    :param alternatives: how many of the likeliest words: the word itself, then it with a number.
    :param has_first: whether the first word has a log probability; that of a prompt has none.
    """
    texts: dict[int, str] = {}
    ids, logprobs = [], []
    for word in words:
        likely = [
            word,
            *(word if number == 1 else f"{word}#{number}" for number in range(1, alternatives + 1)),
        ]
        numbers = [crc32(one.encode(errors="replace")) >> 1 for one in likely]
        texts.update(zip(numbers, likely, strict=True))
        chance = 0.5 + numbers[0] % 1000 / 2001
        rest = [chance, *(chance if n == 1 else (1 - chance) / 2**n for n in range(1, alternatives + 1))]
        ids.append(numbers)
        logprobs.append(list(map(math.log, rest)))
    made = np.array(logprobs, np.float32).reshape(len(words), alternatives + 1)
    found = np.array(ids, np.int32).reshape(len(words), alternatives + 1)
    ranks: npt.NDArray[np.int32] = np.ones(len(words), np.int32)
    if not has_first and len(words):
        made[0], found[0, 1:], ranks[0] = np.nan, -1, 0
    return TokenLogprobs(found, made, ranks, texts)


def seen_in(pixels: Sequence[npt.NDArray[np.uint8]]) -> tuple[str, ...]:
    """A word for each image, such as ``[640x480 #20a0ff]``; a blank in it does not part it.

    :param pixels: of each image: height x width x 3, RGB.
    """
    return tuple(map(_word, pixels))


def _word(pixels: npt.NDArray[np.uint8]) -> str:
    height, width, _ = pixels.shape
    red, green, blue = (round(float(mean)) for mean in pixels.mean(axis=(0, 1)))
    return f"[{width}x{height} #{red:02x}{green:02x}{blue:02x}]"
