# SPDX-License-Identifier: Apache-2.0
"""An engine without a model, which answers with the prompt: a dry run of a DAG takes seconds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.response_schema import followed
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import (
    EngineDeadError,
    EngineInfo,
    most_prompt_tokens,
    overlong,
    too_long,
)
from airflow_provider_raybatch.job.engine.echo_answers import (
    EchoPooling,
    fitting,
    seen_in,
    texts_of,
)
from airflow_provider_raybatch.job.engine.echo_args import EchoSampling, RequestLog, check_echo, parsed
from airflow_provider_raybatch.job.engine.echo_workers import EchoWorkers
from airflow_provider_raybatch.job.engine.text_encoder import TextChunk, response_of
from airflow_provider_raybatch.job.engine.vllm_args import check_sampling_values
from airflow_provider_raybatch.job.request.row_text import shortened
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure


@dataclass(frozen=True)
class EncodedEcho:
    """`text` is what comes back, `prompt` the text of all messages, `pairs` what a pooling model gets.

    Of a text in `chunks`, those are one for each. `seen` has a word for each image.
    """

    text: str
    prompt: str
    words: int
    sampling: EchoSampling
    cut: int = 0
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]] = ()
    chunks: Sequence[TextChunk] = ()
    seen: tuple[str, ...] = ()


class EchoEngine:
    """Deterministic: the completion is the prompt's last message, cut to `max_tokens` words.

    With structured output ``choice``, it picks one of the choices by a hash of the prompt; with a ``json``
    schema that has properties, it answers an object that fits, its texts made of the prompt's words; with
    other ``json`` or ``json_object``, ``{"echo": <message>}``. An adapter puts its name in brackets before
    the message. Before both stands for each image ``[WIDTHxHEIGHT #rrggbb]``, which tells its mean colour and
    counts as a word of the prompt and of the completion. Completion i of n > 1 is marked ``#i``. With
    `model_task` ``embed``, texts with words in common have vectors that are near; ``classify`` draws
    probabilities from a text's words, and ``score`` goes by the words that a pair has in common. A word
    counts as a token. See
    :class:`~airflow_provider_raybatch.job.engine.base.Renewable`.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group.
    """

    def __init__(self, spec: BatchInferenceSpec, spans_nodes: bool = False) -> None:
        options = check_echo(spec)
        self._log = RequestLog(options.request_log)
        time.sleep(options.startup_seconds + random.uniform(0, options.startup_spread))
        self._workers = EchoWorkers() if spans_nodes else None
        self._serve(spec)

    def _serve(self, spec: BatchInferenceSpec) -> None:
        self._log.add(
            "open",
            submission=spec.submission.submission_id if spec.submission else None,
            workers=[asdict(place) for place in self._workers.places] if self._workers else [],
        )
        self._options = check_echo(spec)
        self._sampling = dict(spec.sampling)
        of = self._options
        sizes = of.max_model_len, of.embedding_size, tuple(of.labels)
        self._pooling = EchoPooling(spec, *sizes) if spec.pools else None
        self._truncates = spec.on_overlong == "truncate"
        self._in_flight: dict[object, tuple[float, int]] = {}
        self._slots = asyncio.Semaphore(self._options.max_num_seqs)
        self.info = EngineInfo(
            effective_sampling=self._sampling, sizes={"max_num_seqs": self._options.max_num_seqs}
        )

    @property
    def is_dead(self) -> bool:
        return False

    async def ping(self) -> None:
        pass

    async def prepare(self) -> None:
        pass

    def renewed(self, spec: BatchInferenceSpec) -> EchoEngine:
        self._serve(spec)
        return self

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        return [self._encode_one(request) for request in requests]

    def _encode_one(self, request: Request) -> EncodedEcho | RowFailure:
        try:
            sampling = parsed("sampling", EchoSampling, {**self._sampling, **request.sampling})
            if request.sampling:
                check_sampling_values(request.sampling)
        except RaybatchError as error:
            return RowFailure("engine", str(error))
        if self._pooling is not None:
            return self._encode_text(self._pooling, request, sampling)
        if request.images and not self._options.takes_images:
            return RowFailure("media", "the echo takes no images; set takes_images in engine_args to True")
        texts, context = texts_of(request), self._options.max_model_len
        words = " ".join(texts).split()
        whole = len(words) + len(request.images)
        if whole >= context:
            most = most_prompt_tokens(context, sampling.max_tokens)
            cut = shortened(request, lambda one: len(words_of(one)), whole, most) if self._truncates else None
            if cut is None:
                return overlong(whole, context)
            texts, words = texts_of(cut), words_of(cut)
        text = texts[-1] if request.adapter is None else f"[{request.adapter}] {texts[-1]}"
        left = len(words) + len(request.images)
        return EncodedEcho(text, " ".join(words), left, sampling, whole - left)

    @staticmethod
    def _encode_text(
        pooling: EchoPooling, request: Request, sampling: EchoSampling
    ) -> EncodedEcho | RowFailure:
        if chunks := pooling.chunks(request):
            pairs: list[Any] = [((), chunk.text.split()) for chunk in chunks]
            if (longest := max(chunk.tokens for chunk in chunks)) > pooling.context:
                return too_long(longest, pooling.context)
            tokens, prompt = sum(chunk.tokens for chunk in chunks), " ".join(words_of(request))
            return EncodedEcho("", prompt, tokens, sampling, 0, pairs, chunks)
        fitted = pooling.fitted(request)
        if isinstance(fitted, RowFailure):
            return fitted
        pairs, cut = fitted
        words = [word for pair in pairs for text in pair for word in text]
        return EncodedEcho("", " ".join(words), len(words), sampling, cut, pairs)

    def attach(self, encoded: Any, pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
        asked: EncodedEcho = encoded
        seen = seen_in(pixels)
        return replace(asked, prompt=" ".join([*seen, asked.prompt]), seen=seen)

    async def generate(self, encoded: Any) -> Any:
        asked: EncodedEcho = encoded
        prompt, options = asked.prompt, self._options
        if options.kill_pattern and options.kill_pattern in prompt:
            self._log.add("start", prompt=prompt)
            raise EngineDeadError("The echo engine died of its kill_pattern.")
        if options.fail_pattern and options.fail_pattern in prompt:
            self._log.add("start", prompt=prompt)
            return RowFailure(
                "engine", f"the echo engine fails requests that contain {options.fail_pattern!r}"
            )
        answer = self._answer(asked)
        async with self._slots:
            self._log.add("start", prompt=prompt)
            if options.hang_pattern and options.hang_pattern in prompt:
                await asyncio.Event().wait()
            await self._generate(max((one.output_tokens for one in answer.completions), default=1))
            if self._workers is not None and not self._workers.is_whole:
                raise EngineDeadError("A worker process of the echo engine died.")
        self._log.add("end", prompt=prompt)
        return answer

    def _answer(self, asked: EncodedEcho) -> Response:
        if self._pooling is not None and asked.chunks:
            return response_of(asked.chunks, [self._pooling.of([pair]) for pair in asked.pairs])
        if self._pooling is not None:
            return Response(
                input_tokens=asked.words,
                truncated_prompt_tokens=asked.cut,
                pooled=self._pooling.of(asked.pairs),
                labels=self._pooling.labels,
            )
        completions = tuple(self._completion(asked, number) for number in range(asked.sampling.n))
        return Response(completions, input_tokens=asked.words, truncated_prompt_tokens=asked.cut)

    def _completion(self, asked: EncodedEcho, number: int) -> Completion:
        sampling, structured = asked.sampling, asked.sampling.structured_outputs
        if choices := structured.get("choice"):
            pick = int(hashlib.sha256(asked.prompt.encode()).hexdigest(), 16)
            return Completion(str(choices[(pick + number) % len(choices)]), "stop", 1)
        schema = structured.get("json")
        top = followed(schema, schema)[0] if schema else None
        if isinstance(top, dict) and top.get("properties"):
            rng = random.Random(f"{number}-{asked.prompt}")
            text = json.dumps(fitting(schema, rng, asked.prompt.split() or ["echo"]), ensure_ascii=False)
            return Completion(text, "stop", max(1, len(text.split())))
        words = [*asked.seen, *asked.text.split()]
        if schema or structured.get("json_object"):
            text = " ".join([*asked.seen, asked.text])
            return Completion(json.dumps({"echo": text}), "stop", max(1, len(words)))
        if number:
            words.append(f"#{number}")
        if sampling.temperature > 0:
            random.Random(f"{sampling.seed or 0}-{number}-{asked.prompt}").shuffle(words)
        if sampling.max_tokens is not None and len(words) > sampling.max_tokens:
            return Completion(" ".join(words[: sampling.max_tokens]), "length", sampling.max_tokens)
        return Completion(" ".join(words), "stop", len(words))

    async def _generate(self, tokens: int) -> None:
        """Wait as long as a model of this pace takes."""
        pace = self._options.seconds_per_token
        if not pace:
            return
        request = object()
        self._in_flight[request] = (time.monotonic(), tokens)
        try:
            await asyncio.sleep(pace * tokens)
        finally:
            del self._in_flight[request]

    def tokens_in_flight(self) -> int:
        now, pace = time.monotonic(), self._options.seconds_per_token
        return sum(min(tokens, int((now - began) / pace)) for began, tokens in list(self._in_flight.values()))

    def tokens(self, raw: Any) -> tuple[int, int]:
        response: Response = raw
        return response.input_tokens, response.output_tokens

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        return list(raw)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
        self._log.add("close")


def words_of(request: Request) -> list[str]:
    """The words of a request, which count as tokens."""
    return " ".join(texts_of(request)).split()
