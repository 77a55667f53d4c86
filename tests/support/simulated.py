# SPDX-License-Identifier: Apache-2.0
"""An echo that also calls tools, reasons and has log probabilities, for jobs in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from airflow_provider_raybatch.contract.arguments.sampling import are_asked
from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN, schemas_of
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine.echo import EchoEngine, EncodedEcho
from airflow_provider_raybatch.job.engine.echo_answers import fitting
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure, TokenLogprobs

ENDLESS = "stop early"
"""A prompt with this text is reasoned about, and not answered."""


@dataclass(frozen=True)
class _Asked(EncodedEcho):
    """With the step that asks, and its parameters."""

    step: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


class SimulatedEngine(EchoEngine):
    """Calls the tool whose name the prompt has, or the one that `tool_choice` asks for.

    With a `reasoning_parser`, five words of reasoning come before each answer. Each word is the likeliest of
    its place, and as likely as all others together.
    """

    def _serve(self, spec: BatchInferenceSpec) -> None:
        super()._serve(spec)
        self._spec = spec
        self._reasons = spec.splits_reasoning and spec.chat_template_kwargs.get("enable_thinking", True)
        self._offering = {step: one for step, one in spec.with_tools.items() if one.calls_tools}

    def _encode_one(self, request: Request) -> EncodedEcho | RowFailure:
        made = super()._encode_one(request)
        if isinstance(made, RowFailure):
            return made
        return _Asked(**vars(made), step=request.step, given={**self._sampling, **request.sampling})

    def _answer(self, asked: Any) -> Response:
        response = super()._answer(asked)
        if not self._spec.keeps_logprobs:
            return response
        if are_asked(asked.given, "logprobs"):
            most = int(asked.given["logprobs"])
            completions = [
                replace(one, extra={**one.extra, "logprobs": logprobs(_generated(one), most)})
                for one in response.completions
            ]
            response = replace(response, completions=tuple(completions))
        if are_asked(asked.given, "prompt_logprobs"):
            of_prompt = logprobs(asked.prompt.split(), int(asked.given["prompt_logprobs"]), has_first=False)
            response = replace(response, extra={**response.extra, "prompt_logprobs": of_prompt})
        return response

    def _completion(self, asked: Any, number: int) -> Completion:
        call = self._call(asked, number)
        if not self._reasons:
            return call or super()._completion(asked, number)
        most = asked.sampling.max_tokens
        words = f"The prompt has {count_of(asked.words, 'word')}.".split()
        words = words[: asked.given.get("thinking_token_budget")]
        room = None if most is None else most - len(words)
        words = words[:most]
        extra = {"reasoning": " ".join(words), "reasoning_tokens": len(words)}
        is_cut = room is not None and room < 1
        if is_cut or ENDLESS in asked.prompt:
            return Completion("", "length" if is_cut else "stop", len(words), extra=extra)
        answers = asked.sampling.model_copy(update={"max_tokens": room})
        answer = call or super()._completion(replace(asked, sampling=answers), number)
        tokens = answer.output_tokens + len(words)
        return replace(answer, output_tokens=tokens, extra={**answer.extra, **extra})

    def _call(self, asked: Any, number: int) -> Completion | None:
        spec = self._offering.get(asked.step)
        if spec is None:
            return None
        schemas, choice = schemas_of(spec.tools or ()), spec.tool_choice
        name = next((one for one in schemas if one in asked.prompt), None)
        name = choice["function"]["name"] if isinstance(choice, dict) else name
        if name is None and spec.must_call_tools:
            name = next(iter(schemas))
        if name is None:
            return None
        made = fitting(schemas[name], Random(f"{number}-{asked.prompt}"), asked.prompt.split() or ["echo"])
        call = {"name": name, "arguments": json.dumps(made or {}, ensure_ascii=False)}
        tokens = max(1, len(call["arguments"].split()))
        return Completion("", "tool_calls", tokens, extra={TOOL_CALLS_COLUMN: [call]})


def _generated(completion: Completion) -> list[str]:
    """As many words as the completion has tokens."""
    before = str(completion.extra.get("reasoning") or "").split()
    words, tokens = completion.text.split(), completion.output_tokens - len(before)
    return [*before, *(words if len(words) == tokens else [completion.text] * tokens)]


def logprobs(words: Sequence[str], alternatives: int, has_first: bool = True) -> TokenLogprobs:
    """Each word, and after it as many of the likeliest as are asked for: itself, then it with a number.

    :param has_first: whether the first word has a log probability; that of a prompt has none.
    """
    likeliest = ["", "", *(f"#{number}" for number in range(2, alternatives + 1))][: alternatives + 1]
    texts = [[word + end for end in likeliest] for word in words]
    shape = (len(words), alternatives + 1)
    numbers = [[crc32(one.encode(errors="replace")) >> 1 for one in row] for row in texts]
    ids = np.array(numbers, np.int32).reshape(shape)
    chances = [math.log(0.5 / max(1, 2 ** (number - 1))) for number in range(alternatives + 1)]
    found = np.tile(np.array(chances, np.float32), (len(words), 1)).reshape(shape)
    known = dict(zip(ids.ravel().tolist(), chain.from_iterable(texts), strict=True))
    ranks: Any = np.ones(len(words), np.int32)
    if not has_first and len(words):
        found[0], ids[0, 1:], ranks[0] = np.nan, -1, 0
    return TokenLogprobs(ids, found, ranks, known)
