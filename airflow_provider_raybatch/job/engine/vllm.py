# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine.

Each row is a request of its own, so no row waits for a batch. Prompts are tokenised and completions
detokenised in batches, in threads: per-request work on the event loop would keep a fast engine waiting.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from airflow_provider_raybatch.job.engine.forced import Vocabulary, whole
from airflow_provider_raybatch.job.engine.images import ImageProcessors, wrong_number
from airflow_provider_raybatch.job.engine.response_parsers import ReasoningSplitter, ToolCaller
from airflow_provider_raybatch.job.engine.vllm_requests import Encoded, Requests, may_go_on
from airflow_provider_raybatch.job.engine.vllm_started import StartedVllm, sizes_of
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure


@dataclass(frozen=True)
class _WithoutImages:
    """A request whose images are still to come, with `places` for them in the ids of `asked`."""

    asked: Encoded
    places: int


@dataclass(frozen=True)
class _Raw:
    """A result of vLLM's; `thrown_away` are tokens of a first try that could not go on."""

    output: Any
    asked: Encoded
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
        self._forget_requests()

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

    def _fitted(self, request: Request, ids: list[int]) -> Encoded | _WithoutImages | RowFailure:
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
        encoded = self._requests.encoded(fitted, sampling)
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
        asked: Encoded = encoded.asked
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
        made = self._requests.encoded(ids, asked.sampling, may_fill=False)
        return replace(asked, ids=ids, params=made.params, choices=None, most=0, with_images=prompt)

    def _forget_requests(self) -> None:
        """Make the next ones by the engine as it is now."""
        self._requests = Requests(
            self._spec,
            self._defaults,
            self._max_model_len,
            self._chat,
            self._detokenizer,
            (lambda: self._vocabulary) if self._fill_in else None,
            self._splitter is not None,
        )

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
        if not may_go_on(encoded.params) or not all(rests):
            return await self._repeat(encoded, raw)
        going = (self._go_on(encoded, one, rest) for one, rest in zip(undecided, rests, strict=True))
        further = await asyncio.gather(*going)
        failed = next((one for one in further if isinstance(one, RowFailure)), None)
        return failed or replace(raw, thrown_away=sum(one.thrown_away for one in further))

    async def _go_on(self, encoded: Encoded, begun: Any, rest: list[str]) -> Any:
        """Generate the rest of a completion that has begun, with its tokens at the end of the prompt.

        :param rest: texts that may follow.
        """
        sampling = {**encoded.sampling, "n": 1, "structured_outputs": {"choice": rest}}
        rest_of = self._requests.encoded([*encoded.ids, *begun.token_ids], sampling, goes_on=True)
        further = await self.generate(replace(rest_of, adapter=encoded.adapter))
        if not isinstance(further, RowFailure):
            (added,) = further.output.outputs
            begun.token_ids = [*begun.token_ids, *added.token_ids]
            begun.finish_reason = added.finish_reason
        return further

    async def _repeat(self, encoded: Encoded, raw: _Raw) -> _Raw | RowFailure:
        """Generate a request in full, since its first tokens can't be kept."""
        params = copy.copy(encoded.params)
        params.max_tokens = encoded.most
        again = await self._generate(replace(encoded, params=params, choices=None, most=0))
        return again if isinstance(again, RowFailure) else replace(again, thrown_away=self.tokens(raw)[1])

    async def _generate(self, encoded: Encoded) -> _Raw | RowFailure:
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


def _completion(asked: Encoded, generated: Any, text: str) -> Completion:
    reason, tokens, filled = str(generated.finish_reason or "unknown"), len(generated.token_ids), 0
    if asked.choices is not None and reason == "length":
        text, reason = asked.choices.complete(generated.token_ids) or "", "stop"
        filled = asked.choices.filled(text, generated.token_ids)
    return Completion(text, reason, tokens, filled)
