# SPDX-License-Identifier: Apache-2.0
"""Request keys: rows with equal keys make the same request, and share one response.

A key is 16 bytes of BLAKE2b over the version of this rule and the canonical JSON (keys sorted, no blanks,
ASCII) of

- the request before it is tokenised: the chat, or the raw prompt,
- the versions of its images, if it has any, and not where they lie: so an image is the same under any name,
- its effective sampling: the model's `generation_config`, the job's `sampling`, the row's own,
- model, tokenizer and chat template, by the digests of their content if the engine has them,
- the engine and those of its arguments that change numbers (not those that change sizes),
- what a response must be to count as good, and the order of several completions of a step,
- how texts become tokens, and tools,
- the adapter that answers, if one does, by the digest of its content,
- the kind of task, its pooling parameters and the length of chunks.

The key of requests that are asked together is over theirs, in order, and over what each of them is about.

A sampled request (temperature above 0) needs a new response each time, so its i-th repetition in an input
has a key of its own, for i > 0. In a later step it is numbered by the key of the row's request before it
instead: so a number needs no order of rows, and is the same in the next night.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.tools import ToolArguments
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.row import Request

VERSION = 3
SIZE = 16
"""Bytes: among 10**12 keys, two are equal by chance once in 10**14 cases."""

_ARGUMENTS = ("special_tokens_in_text", "on_overlong", *ToolArguments.model_fields)
_MOST_PREFIXES = 1024
"""Cached digests of rows' sampling parameters."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


class Keyer:
    """Makes the keys of one job. Picklable.

    :param defaults: sampling parameters of the model's `generation_config`.
    :param digests: of what the engine loads.
    """

    def __init__(self, spec: BatchInferenceSpec, defaults: Mapping[str, Any], digests: Digests) -> None:
        step = spec.question.step
        self._shared = {
            "version": VERSION,
            "engine": [spec.engine, spec.numerics, spec.processor_numerics],
            "model": digests.model or spec.model,
            "tokenizer": digests.tokenizer,
            "chat_template": digests.chat_template or spec.chat_template or "",
            "chat_template_kwargs": spec.chat_template_kwargs,
            "response_format": [spec.needs_json, spec.on_truncated],
            "takes_rejected": step.goes_on_rejected,
            "order": ["good ones first", step.best] if step.name and spec.asks_several else None,
            **spec.kind_of_answer,
            **{name: getattr(spec, name) for name in _ARGUMENTS},
        }
        self._pools = spec.pools
        self._sampling = {} if spec.pools else {**defaults, **spec.sampling}
        located = spec.adapter_locations
        self._adapters = {name: digests.adapters.get(name, place) for name, place in located.items()}
        self._prefix = self._prefix_of(self._sampling)
        self._prefixes: dict[str, bytes] = {}
        self._usually_greedy = spec.pools or _is_greedy(self._sampling)

    @property
    def digest(self) -> str:
        """32 hex digits over what all keys of a job have in common, and over its adapters."""
        return hashlib.blake2b(self._prefix + _canonical(self._adapters), digest_size=SIZE).hexdigest()

    def key(self, request: Request) -> bytes:
        """The key of a request, without its number of repetition.

        :param request: the versions of its images are known.
        """
        if request.each:
            together = b"".join(map(self.key, request.each))
            return hashlib.blake2b(b"each" + together + _canonical(request.places), digest_size=SIZE).digest()
        is_usual = not request.sampling and request.adapter is None
        prefix = self._prefix if is_usual else self._prefix_with(request.sampling, request.adapter)
        return hashlib.blake2b(prefix + content_of(request), digest_size=SIZE).digest()

    def in_step(self, key: bytes, request: Request, before: bytes | None) -> bytes:
        """The key of a request of a later step, by the key of the row's request before it."""
        return key if before is None or self.is_greedy(request) else after(key, before)

    def is_greedy(self, request: Request) -> bool:
        """Whether asking again gives the same answer, as at temperature 0."""
        if request.each:
            return all(map(self.is_greedy, request.each))
        if self._pools or not request.sampling:
            return self._usually_greedy
        return _is_greedy({**self._sampling, **request.sampling})

    @property
    def may_be_greedy(self) -> bool:
        """Whether the job's own sampling is greedy; rows may say otherwise."""
        return self.is_greedy(Request(prompt=""))

    def _prefix_with(self, overrides: Mapping[str, Any], adapter: str | None) -> bytes:
        """For a row's own sampling parameters and adapter, which many rows may have in common."""
        kind = _encode([overrides, adapter])
        prefix = self._prefixes.get(kind)
        if prefix is None:
            if len(self._prefixes) >= _MOST_PREFIXES:
                self._prefixes.clear()
            prefix = self._prefixes[kind] = self._prefix_of({**self._sampling, **overrides}, adapter)
        return prefix

    def _prefix_of(self, sampling: Mapping[str, Any], adapter: str | None = None) -> bytes:
        of_adapter = None if adapter is None else self._adapters[adapter]
        content = {**self._shared, "sampling": dict(sampling), "adapter": of_adapter}
        return hashlib.blake2b(_canonical(content), digest_size=SIZE).digest()


def _is_greedy(sampling: Mapping[str, Any]) -> bool:
    temperature = sampling.get("temperature", 1.0)
    try:
        return temperature is not None and float(temperature) == 0.0
    except (TypeError, ValueError):  # the engine will refuse this row alone
        return False


def repetitions(keys: Keys, sampled: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """For each row, how many earlier rows make the same sampled request; 0 for all others.

    :param keys: in input order, before :func:`disambiguate`.
    :param sampled: whether repeating a row's request may give another response.
    """
    numbers: npt.NDArray[np.int64] = np.zeros(len(keys), np.int64)
    places = np.flatnonzero(sampled)
    if len(places):
        order = places[np.argsort(keys[places], kind="stable")]
        is_first = np.r_[True, keys[order[1:]] != keys[order[:-1]]]
        group = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
        numbers[order] = np.arange(len(order)) - group
    return numbers


def disambiguate(keys: Keys, numbers: npt.NDArray[np.int64]) -> Keys:
    """The keys, with a distinct one for each repetition of a sampled request."""
    out = keys.copy()
    for place in np.flatnonzero(numbers):
        out[place] = nth(keys[place : place + 1].tobytes(), int(numbers[place]))
    return out


def nth(key: bytes, number: int) -> bytes:
    """The key of the `number`-th repetition of a sampled request; the request's own for 0."""
    if number == 0:
        return key
    return hashlib.blake2b(key + number.to_bytes(8, "big"), digest_size=SIZE).digest()


def after(key: bytes, before: bytes) -> bytes:
    """The key of a sampled request of a later step.

    :param before: key of the row's last request.
    """
    return hashlib.blake2b(key + before, digest_size=SIZE).digest()


def content_of(request: Request) -> bytes:
    """The canonical JSON of what is asked, and of the versions of its images."""
    if request.messages is not None and not request.images and request.has_texts_alone:
        # The same bytes, sooner: `encode` builds an encoder at each call.
        chat = ",".join([
            f'{{"content":{_quoted(message["content"])},"role":{_quoted(message["role"])}}}'
            for message in request.messages
        ])
        return f"[[{chat}],[]]".encode("ascii")
    asked: Any = request.prompt if request.messages is None else request.messages
    return _canonical([asked, [image.version for image in request.images]])


def as_array(keys: Sequence[bytes]) -> Keys:
    """Keys as one array."""
    return np.frombuffer(b"".join(keys), "S16")


def _canonical(content: Any) -> bytes:
    return _encode(content).encode("ascii")


def _none() -> npt.NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Repetitions(Mapping[int, int]):
    """By row, the number of earlier rows with the same request; 12 bytes each.

    :param rows: ascending.
    :param numbers: for each of them, at least 1.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("rows", "i8"), ("numbers", "i4")])

    rows: npt.NDArray[np.int64] = field(default_factory=_none)
    numbers: npt.NDArray[np.int32] = field(default_factory=lambda: _none().astype(np.int32))

    def among(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Places in `rows` of those that repeat a request, and the number of each."""
        at: npt.NDArray[np.int64] = np.asarray(np.searchsorted(self.rows, rows), np.int64)
        inside = np.flatnonzero(at < len(self.rows))
        places = inside[self.rows[at[inside]] == rows[inside]]
        return places, self.numbers[at[places]]

    def __getitem__(self, row: int) -> int:
        places, numbers = self.among(np.array([row], np.int64))
        if not len(places):
            raise KeyError(row)
        return int(numbers[0])

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def items(self) -> ItemsView[int, int]:
        """The pairs, without a search for each row, which takes five microseconds."""
        return dict(zip(self.rows.tolist(), self.numbers.tolist(), strict=True)).items()

    def __len__(self) -> int:
        return len(self.rows)
