# SPDX-License-Identifier: Apache-2.0
"""Tokens that a choice forces are filled in instead of generated.

With ``structured_outputs={"choice": [...]}``, or the schema of a string with an enum, vLLM keeps the text a
prefix of a choice. When only one choice begins with the text, the rest is known. So a request gets a smaller
`max_tokens`, and its text is completed; a text that is still open goes on from its tokens. Docs:
`docs/internals/rows.md`.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from typing import Any

from airflow_provider_raybatch.contract.arguments.sampling import LOGPROBS, are_asked
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine.request_values import whole_number

_HARMLESS = frozenset({
    "frequency_penalty", "max_tokens", "min_p", "n", "presence_penalty", "repetition_penalty", "seed",
    "structured_outputs", "temperature", "top_k", "top_p",
})  # fmt: skip
"""Sampling parameters that leave the end of the text to the choices."""
_OF_AN_ENUM = frozenset({"enum", "type", "title", "description"})
"""Keywords of a schema that allows its enum and nothing else."""
_WRITTEN_ALIKE = re.compile(r"[ -~]*")
"""Text that every JSON writer writes alike, except for what it escapes."""
_ESCAPED = frozenset('"\\/')
_MOST_BYTES = 32_768
"""Of all choices together. It takes seconds to prepare larger ones."""
_SHOWN = 60
_KEPT = 1024
_COST_OF_A_MISS = 3
"""In tokens: a text goes on as another request, whose last block of the prompt is computed again."""
_TOLERATED_MISSES = 64


def choices_in(structured: Any) -> list[Any]:
    """The texts that structured outputs allow; empty where they can't be listed.

    A schema counts if an enum of strings is all that it allows: in an object, white space is the model's.
    """
    if not isinstance(structured, Mapping):
        return []
    if structured.get("choice"):
        return list(structured["choice"])
    schema = structured.get("json")
    with suppress(ValueError, RecursionError):
        schema = json.loads(schema) if isinstance(schema, str) else schema
    if not isinstance(schema, Mapping) or not _OF_AN_ENUM.issuperset(schema):
        return []
    values = schema.get("enum")
    if schema.get("type", "string") != "string" or not isinstance(values, list):
        return []
    return [f'"{value}"' for value in values] if all(map(_is_written_alike, values)) else []


def _is_written_alike(value: Any) -> bool:
    return isinstance(value, str) and bool(_WRITTEN_ALIKE.fullmatch(value)) and _ESCAPED.isdisjoint(value)


def whole(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, with a `max_tokens` that cuts no choice off even if each of its bytes takes a token.

    :param sampling: all parameters of a request, defaults included.
    """
    needed = _bytes(_longest_choice(sampling)) + 1
    most = whole_number(sampling.get("max_tokens"))
    if not isinstance(most, int) or most >= needed or sampling.get("ignore_eos"):
        return dict(sampling)
    return {**sampling, "max_tokens": needed}


def lengthened(sampling: Mapping[str, Any]) -> str:
    """The change that :func:`whole` makes, as a sentence; empty if there is none."""
    given, needed = sampling.get("max_tokens"), whole(sampling).get("max_tokens")
    if given == needed:
        return ""
    longest = _longest_choice(sampling)
    shown = longest if len(longest) <= _SHOWN else longest[:_SHOWN] + "..."
    return (
        f"sampling: max_tokens={given} could cut off the choice {shown!r}; responses may have "
        f"{count_of(needed or 0, 'token')}, so that each is a whole choice"
    )


def _longest_choice(sampling: Mapping[str, Any]) -> str:
    texts = (choice for choice in choices_in(sampling.get("structured_outputs")) if isinstance(choice, str))
    return max(texts, key=_bytes, default="")


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def why_in_full(sampling: Mapping[str, Any], spec: BatchInferenceSpec) -> str:
    """Why a request is generated in full; empty if its choice may be filled in.

    :param sampling: all its parameters, defaults included.
    """
    structured = sampling.get("structured_outputs")
    choices = choices_in(structured)
    if not isinstance(structured, Mapping) or not choices:
        return "the response is not one of given choices"
    kind = "choice" if structured.get("choice") else "json"
    if kind == "json" and not _is_xgrammar(spec):
        return "the backend may write JSON in another way"
    others = [name for name, value in structured.items() if value and name != kind]
    others += [name for name, value in sampling.items() if value and name not in _HARMLESS]
    others += [name for name in LOGPROBS if are_asked(sampling, name)]  # each token has one, also for 0
    others += [name for name in ("logits_processors",) if spec.engine_args.get(name)]
    if others or spec.reasoning_parser:
        return f"{(others or ['reasoning_parser'])[0]} may change the text or its end"
    if not all(isinstance(choice, str) and choice and _is_unicode(choice) for choice in choices):
        return "a choice is empty or not valid text"
    encoded = {choice.encode() for choice in choices}
    return "the choices are too large" if sum(map(len, encoded)) > _MOST_BYTES else ""


def _is_xgrammar(spec: BatchInferenceSpec) -> bool:
    """Whether the backend is xgrammar, which `auto` is for such a schema."""
    config = spec.engine_args.get("structured_outputs_config")
    backend = config.get("backend") if isinstance(config, Mapping) else config
    return backend in (None, "auto", "xgrammar")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


class Vocabulary:
    """What each token adds to a text.

    :param texts: bytes by token id; empty for tokens that add none.
    :param encode: token ids of a text, as the tokenizer gives them.
    :param decode: the reverse.
    """

    def __init__(
        self, texts: Sequence[bytes], encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
    ) -> None:
        self._texts = texts
        self._encode = encode
        self._decode = decode
        self.ids = {text: number for number, text in enumerate(texts) if text}
        self._longest = max(map(len, self.ids), default=0)
        self.choices = functools.lru_cache(_KEPT)(self._choices)

    def _choices(self, choices: tuple[str, ...]) -> Choices | None:
        """The choices; ``None`` if the tokenizer changes one of them."""
        usual = {choice.encode(): self._usual(choice) for choice in choices}
        lossy = any(self._decode(ids) != choice.decode() for choice, ids in usual.items())
        return None if lossy else Choices(usual, self)

    def text(self, ids: Sequence[int]) -> bytes | None:
        """What the tokens spell; ``None`` if one of them adds no text."""
        known = [self._texts[number] if number < len(self._texts) else b"" for number in ids]
        return b"".join(known) if all(known) else None

    def _usual(self, choice: str) -> list[int]:
        ids, text = self._encode(choice), choice.encode()
        # Some tokenizers put a space before each text, and the grammar allows none.
        return ids if self.text(ids) == text else self.longest_tokens(text)

    def longest_tokens(self, text: bytes) -> list[int]:
        """The text in tokens, each as long as possible; empty if it has none."""
        ids = []
        while text:
            sizes = range(min(len(text), self._longest), 0, -1)
            size = next((size for size in sizes if text[:size] in self.ids), None)
            if size is None:
                return []
            ids.append(self.ids[text[:size]])
            text = text[size:]
        return ids


class Choices:
    """The choices of a request that :func:`why_in_full` lets pass.

    :param usual: the token ids of each choice as the tokenizer writes it.
    """

    def __init__(self, usual: Mapping[bytes, Sequence[int]], vocabulary: Vocabulary) -> None:
        self._usual = dict(sorted(usual.items()))
        self._sorted = list(self._usual)
        self._vocabulary = vocabulary
        self._longest = max(map(len, self._sorted))
        self._tried: Counter[int] = Counter()
        self._missed: Counter[int] = Counter()

    def cap(self, most: int, may_miss: bool) -> int | None:
        """How many tokens to generate; ``None`` for all.

        :param most: `max_tokens` of the request. If it could cut a choice off, all are generated.
        :param may_miss: whether a text that is still open may get more tokens later.
        """
        if most <= self._longest:  # each byte may take a token, and the end of the text takes one
            return None
        cap = self._usually_enough if may_miss else self._always_enough
        while self._missed[cap] * _COST_OF_A_MISS > self._tried[cap] + _TOLERATED_MISSES:
            cap += 1  # this model takes shorter tokens than the tokenizer
        return cap if cap < most else None

    def count(self, cap: int, missed: bool) -> None:
        """Count how often a cap was too small."""
        self._tried[cap] += 1
        self._missed[cap] += missed

    def complete(self, ids: Sequence[int]) -> str | None:
        """The choice that begins with `ids`; ``None`` if several do."""
        found = self._beginning_with(self._vocabulary.text(ids))
        return found[0].decode() if len(found) == 1 else None

    def rest(self, ids: Sequence[int]) -> list[str]:
        """What may follow `ids`, one text for each choice; empty if they end inside of a character."""
        text = self._vocabulary.text(ids)
        with suppress(UnicodeDecodeError):
            return [choice[len(text or b"") :].decode() for choice in self._beginning_with(text)]
        return []

    def filled(self, choice: str, ids: Sequence[int]) -> int:
        """Tokens that are left after `ids`, the end of the text included."""
        usual, text = self._usual[choice.encode()], self._vocabulary.text(ids) or b""
        if list(usual[: len(ids)]) == list(ids):
            return len(usual) + 1 - len(ids)
        return len(self._vocabulary.longest_tokens(choice.encode()[len(text) :])) + 1

    @functools.cached_property
    def may_split_characters(self) -> bool:
        """Whether an open text may end inside of a character."""
        return any(text.decode(errors="ignore").encode() != text for text in self._shared)

    def _beginning_with(self, text: bytes | None) -> list[bytes]:
        if text is None:
            return []
        first = bisect_left(self._sorted, text)
        return list(takewhile(lambda choice: choice.startswith(text), self._sorted[first:]))

    @functools.cached_property
    def _usually_enough(self) -> int:
        """The cap that costs least if all choices are equally frequent."""
        return min(range(1, 2 + max(map(len, self._usual.values()))), key=self._cost)

    def _cost(self, cap: int) -> int:
        missed = (self.complete(ids[:cap]) is None for ids in self._usual.values() if len(ids) >= cap)
        return sum(min(cap, len(ids) + 1) for ids in self._usual.values()) + _COST_OF_A_MISS * sum(missed)

    @functools.cached_property
    def _always_enough(self) -> int:
        """One more than the most tokens that can spell a text with which several choices begin."""
        tokens = {b"": 0}
        for text in sorted(self._shared, key=len):
            lasts = (size for size in range(len(text)) if text[size:] in self._vocabulary.ids)
            before = [tokens[text[:size]] for size in lasts if text[:size] in tokens]
            if before:
                tokens[text] = 1 + max(before)
        return 1 + max(tokens.values())

    @functools.cached_property
    def _shared(self) -> set[bytes]:
        """Texts with which several choices begin."""
        return {
            before[:size]
            for before, after in pairwise(self._sorted)
            for size in range(1, len(before) + 1)
            if after.startswith(before[:size])
        }
