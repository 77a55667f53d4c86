# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine of a pooling model: a text in, numbers out, and nothing generated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.engine.pair_encoder import Pair, Pairs, pooling_encoder
from airflow_provider_raybatch.job.engine.text_encoder import Chunks, failure_of, response_of
from airflow_provider_raybatch.job.engine.vllm_started import StartedVllm, sizes_of
from airflow_provider_raybatch.job.row import Request, Response, RowFailure

_PIECES_AHEAD = 2
"""Pieces of rows in vLLM at once, as a multiple of what it works on; all of them may fill its memory."""


@dataclass(frozen=True)
class _Encoded:
    """`cut` tokens of the text were left out."""

    ids: list[int]
    cut: int = 0


@dataclass(frozen=True)
class _Made:
    """What vLLM made of some tokens; `cached` of them came out of the prefix cache."""

    numbers: npt.NDArray[np.float32]
    cached: int


@dataclass(frozen=True)
class _Raw:
    made: Sequence[_Made]
    asked: _Encoded


class VllmPoolingEngine(StartedVllm):
    """See :class:`~airflow_provider_raybatch.job.engine.base.Renewable`."""

    def _serve(self, spec: BatchInferenceSpec) -> None:
        self._spec = spec
        config = self._llm.vllm_config
        model, sizes = config.model_config, sizes_of(config)
        self._context = int(model.max_model_len)
        classifies = spec.model_task == "classify"
        self._labels = vllm_compat_models.labels_of(model) if classifies else None
        renderer = vllm_compat.renderer_of(self._llm)
        self._encoder = pooling_encoder(spec, self._llm.get_tokenizer(), model, renderer)
        self._room = asyncio.Semaphore(_PIECES_AHEAD * sizes["max_num_seqs"])
        self.info = EngineInfo({}, sizes, {"vllm": vllm_compat.installed_version()})

    async def prepare(self) -> None:
        """Check what a model's files leave open, and its engine tells.

        :raises PreflightError: the model can't do the job's task.
        """
        can = await vllm_compat_models.supported_tasks(self._llm)
        if vllm_compat_models.TASKS[self._spec.model_task] not in can:
            raise PreflightError(
                f"model: model_task {self._spec.model_task!r} needs another model: vLLM can use "
                f"{self._spec.model!r} for {' and '.join(map(repr, can))} alone."
            )

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        encoded: list[Any] = []
        for request, ids in zip(requests, self._encoder.encode(requests), strict=True):
            fitted = ids
            if not isinstance(ids, RowFailure):
                fitted = self._encoder.fitted(request, ids, self._context, None)
            if isinstance(ids, RowFailure) or isinstance(fitted, RowFailure):
                encoded.append(fitted)
            else:
                encoded.append(_Encoded(fitted, len(ids) - len(fitted)))
        return encoded

    def attach(self, encoded: Any, pixels: Sequence[npt.NDArray[np.uint8]]) -> RowFailure:
        return RowFailure("media", "a pooling model gets texts alone; leave the images out")

    async def generate(self, encoded: Any) -> Any:
        asked: _Encoded = encoded
        ids, pieces = asked.ids, _pieces(asked.ids)
        if not pieces:
            made = [await self._made(Pair(ids))]
        else:
            made = await asyncio.gather(*map(self._in_turn, pieces))
        for number, one in enumerate(made):
            if isinstance(one, RowFailure) and isinstance(ids, Chunks):
                return failure_of(number, ids.chunks[number], one, len(ids))
            if isinstance(one, RowFailure):
                return one
        return _Raw([one for one in made if isinstance(one, _Made)], asked)

    async def _in_turn(self, piece: Pair) -> _Made | RowFailure:
        async with self._room:
            return await self._made(piece)

    async def _made(self, piece: Pair) -> _Made | RowFailure:
        task, values = self._spec.model_task, self._spec.pooling
        params = vllm_compat_models.pooling_params(task, values, piece.second)
        prompt = vllm_compat.as_tokens(piece.ids)
        final = await self._last(self._llm.encode(prompt, params, str(next(self._numbers))))
        if isinstance(final, RowFailure):
            return final
        try:
            numbers = vllm_compat_models.pooled(final)
        except ValueError as error:
            return RowFailure.of("engine", error)
        return _Made(numbers, int(getattr(final, "num_cached_tokens", None) or 0))

    def tokens(self, raw: Any) -> tuple[int, int]:
        return len(raw.asked.ids), 0

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        return [self._response(one) for one in raw]

    def _response(self, raw: _Raw) -> Response:
        found, cached = [one.numbers for one in raw.made], sum(one.cached for one in raw.made)
        if isinstance(raw.asked.ids, Chunks):
            return response_of(raw.asked.ids.chunks, found, cached)
        numbers = found[0] if len(found) == 1 else np.concatenate(found)
        return Response(
            input_tokens=len(raw.asked.ids),
            cached_tokens=cached,
            truncated_prompt_tokens=raw.asked.cut,
            pooled=numbers,
            labels=() if self._labels is None else _names(self._labels, len(numbers)),
        )


def _pieces(ids: list[int]) -> Sequence[Pair]:
    """What a row asks vLLM one by one; nothing where it asks once."""
    if isinstance(ids, Pairs):
        return ids.pairs
    return [Pair(chunk.ids) for chunk in ids.chunks] if isinstance(ids, Chunks) else []


def _names(labels: Mapping[int, str], count: int) -> tuple[str, ...]:
    """Labels of so many numbers: those of the model's config, if each number has one of its own."""
    names = tuple(labels.get(number, "") for number in range(count))
    if len(set(filter(None, names))) < count:
        return tuple(f"LABEL_{number}" for number in range(count))
    return names
