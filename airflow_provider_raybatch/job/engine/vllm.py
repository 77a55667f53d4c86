# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine.

Each row is a request of its own, so no row waits for a batch. Prompts are tokenised and completions
detokenised in batches, in threads: per-request work on the event loop would keep a fast engine waiting.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models, vllm_compat_parsers
from airflow_provider_raybatch.job.engine.adapters import EngineAdapters
from airflow_provider_raybatch.job.engine.base import EngineInfo, overlong
from airflow_provider_raybatch.job.engine.chat import chat_encoder
from airflow_provider_raybatch.job.engine.detokenize import Detokenizer, Generated, LogprobReader
from airflow_provider_raybatch.job.engine.forced import Choices, Vocabulary, choices_in, whole, why_in_full
from airflow_provider_raybatch.job.engine.images import ImageProcessors, wrong_number
from airflow_provider_raybatch.job.engine.response_parsers import ReasoningSplitter, ToolCaller
from airflow_provider_raybatch.job.engine.vllm_args import sampling_params
from airflow_provider_raybatch.job.engine.vllm_started import StartedVllm, sizes_of
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure

_MOST_KINDS = 1024
"""Cached sampling parameters of rows: checking and making them takes longer than tokenising."""
_as_json = json.JSONEncoder().encode  # keys in their order: properties of a schema are generated in it


@dataclass(frozen=True)
class _Encoded:
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


@dataclass(frozen=True)
class _WithoutImages:
    """A request whose images are still to come, with `places` for them in the ids of `asked`."""

    asked: _Encoded
    places: int


@dataclass(frozen=True)
class _Raw:
    """A result of vLLM's; `thrown_away` are tokens of a first try that could not go on."""

    output: Any
    asked: _Encoded
    thrown_away: int = 0


class VllmEngine(StartedVllm):
    """See :class:`~airflow_provider_raybatch.job.engine.base.Renewable`.

    :param fill_in: fill in tokens that a choice forces, see
        :mod:`~airflow_provider_raybatch.job.engine.forced`; responses are the same without.
    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group.
    """

    _splitter: ReasoningSplitter | None = None
    _logprobs: LogprobReader | None = None
    _callers: Mapping[str, ToolCaller] = {}
    """By their steps; an empty name for that of a job without steps."""
    _about_grammar: Mapping[str, Any] = {}
    """Further arguments of a request."""

    def __init__(self, spec: BatchInferenceSpec, fill_in: bool = True, spans_nodes: bool = False) -> None:
        self._fill_in = fill_in
        self._adapters = EngineAdapters(spans_nodes)
        super().__init__(spec, spans_nodes)
        self._processors = ImageProcessors(self._renderer)

    def _serve(self, spec: BatchInferenceSpec) -> None:
        config = self._llm.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._defaults = {**vllm_compat.sampling_defaults(config.model_config), **spec.sampling}
        self._spec = spec
        self._loras: dict[str, Any] | None = None
        self._tokenizer = tokenizer = self._llm.get_tokenizer()
        self._renderer = vllm_compat.renderer_of(self._llm)
        self._chat = chat_encoder(spec, tokenizer, config.model_config, self._renderer)
        self._logprobs = LogprobReader(tokenizer) if spec.keeps_logprobs else None
        offering = spec.with_tools.items()
        self._callers = {step: ToolCaller(one, tokenizer) for step, one in offering if one.calls_tools}
        self._reason(spec)
        self._forget_params()
        sizes = {**sizes_of(config), "kv_cache_tokens": vllm_compat.kv_cache_tokens(config.cache_config)}
        self.info = EngineInfo(self._defaults, sizes, {"vllm": vllm_compat.installed_version()})

    def _reason(self, spec: BatchInferenceSpec) -> None:
        """Tell reasoning from answers, where the spec names a parser."""
        self._splitter, self._about_grammar = None, {}
        if spec.splits_reasoning:
            variables = spec.chat_template_kwargs
            self._splitter = ReasoningSplitter(
                vllm_compat_parsers.reasoning_parser(
                    spec.reasoning_parser, self._tokenizer, variables, spec.reasoning_plugin
                ),
                vllm_compat_parsers.any_request(),
                self._tokenizer,
            )
            self._about_grammar = vllm_compat_parsers.grammar_arguments(self._llm, variables)
        self._detokenizer = Detokenizer(self._tokenizer, keeps_special=spec.splits_reasoning)

    async def prepare(self) -> None:
        if self._loras is None:
            self._loras = await self._adapters.load(self._llm, self._spec)

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        encoded: list[Any] = []
        for request, ids in zip(requests, self._chat.encode(requests), strict=True):
            if isinstance(ids, RowFailure):
                encoded.append(ids)
                continue
            try:
                encoded.append(self._fitted(request, ids))
            except (ValueError, RaybatchError) as error:  # parameters of this row alone
                encoded.append(RowFailure.of("engine", error))
        return encoded

    def _fitted(self, request: Request, ids: list[int]) -> _Encoded | _WithoutImages | RowFailure:
        sampling, caller = request.sampling, self._callers.get(request.step)
        if caller is not None and sampling.get("structured_outputs"):
            raise ValueError("structured_outputs: the job's tools constrain the response; remove it")
        if caller is not None:
            sampling = {**sampling, **caller.sampling}
        merged = whole({**self._defaults, **sampling})
        fitted = self._chat.fitted(request, ids, self._max_model_len, merged.get("max_tokens"))
        if isinstance(fitted, RowFailure):
            return fitted
        cut, special = len(ids) - len(fitted), self._chat.has_special_tokens(request)
        adapter = None if request.adapter is None else (self._loras or {})[request.adapter]
        encoded = self._encoded(fitted, sampling)
        kept = merged.get("skip_special_tokens") is False
        encoded = replace(
            encoded, cut=cut, special=special, adapter=adapter, step=request.step, keeps_special=kept
        )
        if not request.images:
            return encoded
        return _WithoutImages(replace(encoded, sampling=sampling), len(request.images))

    def attach(self, encoded: Any, pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
        """See :meth:`~airflow_provider_raybatch.job.engine.base.Engine.attach`.

        Choices are not filled in: the rest of a response would need the images once more.
        """
        asked: _Encoded = encoded.asked
        if len(pixels) != encoded.places:  # of some counts, vLLM would make another request in silence
            return wrong_number(len(pixels), encoded.places)
        try:
            with self._processors.one() as renderer:
                prompt = vllm_compat_models.engine_input(renderer, asked.ids, pixels)
        except Exception as error:  # vLLM's, or of a model's processor
            return RowFailure.of("media", error)
        ids = prompt["prompt_token_ids"]
        if len(ids) >= self._max_model_len:
            return overlong(len(ids), self._max_model_len)
        made = self._encoded(ids, asked.sampling, may_fill=False)
        return replace(asked, ids=ids, params=made.params, choices=None, most=0, with_images=prompt)

    def _encoded(
        self, ids: list[int], overrides: Mapping[str, Any], goes_on: bool = False, may_fill: bool = True
    ) -> _Encoded:
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
            return _Encoded(ids, params)
        most, repeatable = params.max_tokens, params.temperature == 0 or params.seed is not None
        may_miss = repeatable or (_may_go_on(params) and not choices.may_split_characters)
        params.max_tokens = choices.cap(most, may_miss and not goes_on) or most
        return _Encoded(ids, params, choices if params.max_tokens < most else None, most, overrides)

    def _params(self, overrides: Mapping[str, Any]) -> tuple[Any, Choices | None]:
        """VLLM's parameters of one request, and the choices whose forced tokens may be filled in."""
        try:
            key = _as_json(overrides)
        except (TypeError, ValueError, RecursionError):  # they can't be a key
            return self._made(overrides)
        params, choices = self._known(key)
        return copy.copy(params), choices

    def _forget_params(self) -> None:
        self._known = functools.lru_cache(_MOST_KINDS)(lambda key: self._made(json.loads(key)))

    def _made(self, overrides: Mapping[str, Any]) -> tuple[Any, Choices | None]:
        merged = whole({**self._defaults, **overrides})
        merged.setdefault("max_tokens", None)
        params, choices = sampling_params(merged), None
        self._chat.check_sampling(params)
        params.detokenize = self._detokenizer.leaves_to_vllm(merged)
        if self._splitter is not None:
            params.skip_special_tokens = False  # tags may be special
        vllm_compat.set_for_batch(params)  # each request has its own already
        if self._fill_in and not params.detokenize and not why_in_full(merged, self._spec):
            choices = self._vocabulary.choices(tuple(choices_in(merged["structured_outputs"])))
        return params, choices

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        texts = vllm_compat_parsers.token_texts(self._tokenizer)
        return Vocabulary(texts, encode, lambda ids: self._detokenizer.decode([Generated((), ids, None)])[0])

    async def generate(self, encoded: Any) -> Any:
        raw = await self._generate(encoded)
        choices = encoded.choices
        if choices is None or isinstance(raw, RowFailure):
            return raw
        cut = (one for one in raw.output.outputs if one.finish_reason == "length")
        undecided = [one for one in cut if choices.complete(one.token_ids) is None]
        choices.count(encoded.params.max_tokens, bool(undecided))
        if not undecided:
            return raw
        rests = [choices.rest(one.token_ids) for one in undecided]
        if not _may_go_on(encoded.params) or not all(rests):
            return await self._repeat(encoded, raw)
        going = (self._go_on(encoded, one, rest) for one, rest in zip(undecided, rests, strict=True))
        further = await asyncio.gather(*going)
        failed = next((one for one in further if isinstance(one, RowFailure)), None)
        return failed or replace(raw, thrown_away=sum(one.thrown_away for one in further))

    async def _go_on(self, encoded: _Encoded, begun: Any, rest: list[str]) -> Any:
        """Generate the rest of a completion that has begun, with its tokens at the end of the prompt.

        :param rest: texts that may follow.
        """
        sampling = {**encoded.sampling, "n": 1, "structured_outputs": {"choice": rest}}
        rest_of = self._encoded([*encoded.ids, *begun.token_ids], sampling, goes_on=True)
        further = await self.generate(replace(rest_of, adapter=encoded.adapter))
        if not isinstance(further, RowFailure):
            (added,) = further.output.outputs
            begun.token_ids = [*begun.token_ids, *added.token_ids]
            begun.finish_reason = added.finish_reason
        return further

    async def _repeat(self, encoded: _Encoded, raw: _Raw) -> _Raw | RowFailure:
        """Generate a request in full, since its first tokens can't be kept."""
        params = copy.copy(encoded.params)
        params.max_tokens = encoded.most
        again = await self._generate(replace(encoded, params=params, choices=None, most=0))
        return again if isinstance(again, RowFailure) else replace(again, thrown_away=self.tokens(raw)[1])

    async def _generate(self, encoded: _Encoded) -> _Raw | RowFailure:
        prompt, number = encoded.with_images or vllm_compat.as_tokens(encoded.ids), str(next(self._numbers))
        more = {} if encoded.adapter is None else {"lora_request": encoded.adapter}
        outputs = self._llm.generate(prompt, encoded.params, number, **self._about_grammar, **more)
        final = await self._last(outputs)
        if isinstance(final, RowFailure):
            return final
        if encoded.with_images is not None:  # results wait until many are decoded together
            encoded = replace(encoded, with_images=None)
        return _Raw(final, encoded)

    def tokens(self, raw: Any) -> tuple[int, int]:
        generated = sum(len(one.token_ids) for one in raw.output.outputs)
        return len(raw.output.prompt_token_ids or ()), generated + raw.thrown_away

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        without_text = [
            Generated(item.output.prompt_token_ids or (), one.token_ids, one.finish_reason)
            for item in raw
            if not item.asked.params.detokenize
            for one in item.output.outputs
        ]
        texts = iter(self._detokenizer.decode(without_text))
        responses = [_response(item, texts) for item in raw]
        return [self._read(response, item) for response, item in zip(responses, raw, strict=True)]

    def _read(self, response: Response, raw: _Raw) -> Response:
        """The response with its reasoning apart, with log probabilities and with calls of tools."""
        if self._splitter is not None:
            response = self._splitter.added(response, raw.output, raw.asked.keeps_special)
        if self._logprobs is not None:
            response = self._logprobs.added(response, raw.output)
        caller = self._callers.get(raw.asked.step)
        return response if caller is None else caller.added(response)


def _response(raw: _Raw, texts: Iterator[str]) -> Response:
    """The response with its own texts, or the next ones of `texts` where vLLM made none."""
    output, asked = raw.output, raw.asked
    return Response(
        tuple(
            _completion(asked, one, one.text if asked.params.detokenize else next(texts))
            for one in output.outputs
        ),
        input_tokens=len(output.prompt_token_ids or ()),
        cached_tokens=int(output.num_cached_tokens or 0),
        truncated_prompt_tokens=asked.cut,
        has_special_tokens=asked.special,
    )


def _completion(asked: _Encoded, generated: Any, text: str) -> Completion:
    reason, tokens, filled = str(generated.finish_reason or "unknown"), len(generated.token_ids), 0
    if asked.choices is not None and reason == "length":
        text, reason = asked.choices.complete(generated.token_ids) or "", "stop"
        filled = asked.choices.filled(text, generated.token_ids)
    return Completion(text, reason, tokens, filled)


def _may_go_on(params: Any) -> bool:
    """Whether a response goes on in the same way when its first tokens are moved into the prompt.

    A seed's random numbers would begin again, and these penalties don't count a prompt's tokens.
    """
    seeded = params.temperature != 0 and params.seed is not None
    return not (seeded or params.frequency_penalty or params.presence_penalty)
