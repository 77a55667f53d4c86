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
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_pooling
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.engine.pair_encoder import Pair, Pairs, pooling_encoder
from airflow_provider_raybatch.job.engine.vllm_started import StartedVllm
from airflow_provider_raybatch.job.row import Request, Response, RowFailure


@dataclass(frozen=True)
class _Encoded:
    """`cut` tokens of the text were left out."""

    ids: list[int]
    cut: int = 0


@dataclass(frozen=True)
class _Raw:
    finals: Sequence[Any]
    asked: _Encoded


class VllmPoolingEngine(StartedVllm):
    """See :class:`~airflow_provider_raybatch.job.engine.base.Renewable`."""

    def _serve(self, spec: BatchInferenceSpec) -> None:
        self._spec = spec
        config = self._llm.vllm_config
        model, scheduler = config.model_config, config.scheduler_config
        self._context = int(model.max_model_len)
        classifies = spec.model_task == "classify"
        self._labels = vllm_compat_pooling.labels_of(model) if classifies else None
        self._encoder = pooling_encoder(spec, self._llm.get_tokenizer(), model)
        sizes = {
            "max_model_len": self._context,
            "max_num_seqs": int(scheduler.max_num_seqs),
            "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
            "enforce_eager": bool(model.enforce_eager),
        }
        self.info = EngineInfo({}, sizes, {"vllm": vllm_compat.installed_version()})

    def renewed(self, spec: BatchInferenceSpec) -> VllmPoolingEngine:
        self._serve(spec)
        return self

    async def prepare(self) -> None:
        """Check what a model's files leave open, and its engine tells.

        :raises PreflightError: the model can't do the job's task.
        """
        can = await vllm_compat_pooling.supported_tasks(self._llm)
        if vllm_compat_pooling.TASKS[self._spec.model_task] not in can:
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

    async def generate(self, encoded: Any) -> Any:
        asked: _Encoded = encoded
        pairs = asked.ids.pairs if isinstance(asked.ids, Pairs) else [Pair(asked.ids)]
        finals = await asyncio.gather(*map(self._final, pairs))
        failed = next((one for one in finals if isinstance(one, RowFailure)), None)
        return failed or _Raw(finals, asked)

    async def _final(self, pair: Pair) -> Any:
        task, values = self._spec.model_task, self._spec.pooling
        params = vllm_compat_pooling.pooling_params(task, values, pair.second)
        prompt = vllm_compat.as_tokens(pair.ids)
        final = await self._last(self._llm.encode(prompt, params, str(next(self._numbers))))
        if isinstance(final, RowFailure):
            return final
        try:
            vllm_compat_pooling.pooled(final)
        except ValueError as error:
            return RowFailure.of("engine", error)
        return final

    def tokens(self, raw: Any) -> tuple[int, int]:
        return len(raw.asked.ids), 0

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        return [
            Response(
                input_tokens=len(item.asked.ids),
                cached_tokens=sum(int(getattr(one, "num_cached_tokens", None) or 0) for one in item.finals),
                truncated_prompt_tokens=item.asked.cut,
                pooled=numbers,
                labels=() if self._labels is None else _names(self._labels, len(numbers)),
            )
            for item in raw
            for numbers in [_together(item.finals)]
        ]


def _together(finals: Sequence[Any]) -> npt.NDArray[np.float32]:
    """The numbers of a row: those of its one text, or one of each pair."""
    found = [vllm_compat_pooling.pooled(final) for final in finals]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _names(labels: Mapping[int, str], count: int) -> tuple[str, ...]:
    """Labels of so many numbers: those of the model's config, if each number has one of its own."""
    names = tuple(labels.get(number, "") for number in range(count))
    if len(set(filter(None, names))) < count:
        return tuple(f"LABEL_{number}" for number in range(count))
    return names
