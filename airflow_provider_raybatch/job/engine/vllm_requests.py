# SPDX-License-Identifier: Apache-2.0
"""Requests as vLLM takes them, each with its own parameters.

Tokens that a choice forces are asked for only as far as they decide, see `forced.py`.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.chat import ChatEncoder
from airflow_provider_raybatch.job.engine.detokenize import Detokenizer
from airflow_provider_raybatch.job.engine.forced import Choices, Vocabulary, choices_in, whole, why_in_full
from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

_MOST_KINDS = 1024
"""Cached sampling parameters of rows: checking and making them takes longer than tokenising."""
_as_json = json.JSONEncoder().encode  # keys in their order: properties of a schema are generated in it


@dataclass(frozen=True)
class Encoded:
    """A request of vLLM's.

    :param choices: set where `params` ask for fewer tokens than `most`, the request's own limit.
    :param sampling: the request's own parameters.
    :param cut: tokens of the prompt that were cut off.
    :param special: whether the row's text has special tokens.
    :param adapter: vLLM's ``LoRARequest`` of the adapter that answers.
    :param with_images: what vLLM gets in place of `ids`, of a request with images.
    :param step: that asks it; it may offer tools.
    :param keeps_special: whether special tokens stay in the text.
    """

    ids: list[int]
    params: Any
    choices: Choices | None = None
    most: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cut: int = 0
    special: bool = False
    adapter: Any = None
    with_images: Any = None
    step: str = ""
    keeps_special: bool = False


class Requests:
    """Makes the requests of a job, with the same parameters for those that ask for the same.

    :param defaults: sampling parameters of requests without their own.
    :param context: tokens of a prompt and its response, at most.
    :param vocabulary: by which tokens that a choice forces are filled in; ``None`` if they are not.
    :param splits: whether reasoning is told from answers by its tags.
    """

    def __init__(
        self,
        spec: BatchInferenceSpec,
        defaults: Mapping[str, Any],
        context: int,
        chat: ChatEncoder,
        detokenizer: Detokenizer,
        vocabulary: Callable[[], Vocabulary] | None,
        splits: bool,
    ) -> None:
        self._spec, self._defaults, self._max_model_len = spec, defaults, context
        self._chat, self._detokenizer, self._vocabulary, self._splits = chat, detokenizer, vocabulary, splits
        self._known = functools.lru_cache(_MOST_KINDS)(lambda key: self._made(json.loads(key)))

    def encoded(
        self, ids: list[int], overrides: Mapping[str, Any], goes_on: bool = False, may_fill: bool = True
    ) -> Encoded:
        """A request whose `max_tokens` is what the context leaves, unless set, as in vLLM's server.

        :param goes_on: whether its first tokens left a choice open; this time no choice stays open.
        :param may_fill: whether tokens that a choice forces may be filled in.
        """
        params, choices = self._params(overrides)
        room = self._max_model_len - len(ids)
        if params.max_tokens is None or params.max_tokens > room:
            params.max_tokens = room
            params.min_tokens = min(params.min_tokens, room)
        if choices is None or not may_fill:
            return Encoded(ids, params)
        most, repeatable = params.max_tokens, params.temperature == 0 or params.seed is not None
        may_miss = repeatable or (may_go_on(params) and not choices.may_split_characters)
        params.max_tokens = choices.cap(most, may_miss and not goes_on) or most
        return Encoded(ids, params, choices if params.max_tokens < most else None, most, overrides)

    def _params(self, overrides: Mapping[str, Any]) -> tuple[Any, Choices | None]:
        """VLLM's parameters of one request, and the choices whose forced tokens may be filled in."""
        try:
            key = _as_json(overrides)
        except (TypeError, ValueError, RecursionError):  # they can't be a key
            return self._made(overrides)
        params, choices = self._known(key)
        return copy.copy(params), choices

    def _made(self, overrides: Mapping[str, Any]) -> tuple[Any, Choices | None]:
        merged = whole({**self._defaults, **overrides})
        merged.setdefault("max_tokens", None)
        params, choices = sampling_params(merged), None
        self._chat.check_sampling(params)
        params.detokenize = self._detokenizer.leaves_to_vllm(merged)
        if self._splits:
            params.skip_special_tokens = False  # tags may be special
        vllm_compat.set_for_batch(params)  # each request has its own already
        if self._vocabulary and not params.detokenize and not why_in_full(merged, self._spec):
            choices = self._vocabulary().choices(tuple(choices_in(merged["structured_outputs"])))
        return params, choices


def may_go_on(params: Any) -> bool:
    """Whether a response goes on in the same way when its first tokens are moved into the prompt.

    A seed's random numbers would begin again, and these penalties don't count a prompt's tokens.
    """
    seeded = params.temperature != 0 and params.seed is not None
    return not (seeded or params.frequency_penalty or params.presence_penalty)
