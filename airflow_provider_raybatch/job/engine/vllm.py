# SPDX-License-Identifier: Apache-2.0
"""vLLM's async engine in a replica's process.

Each row is a request of its own, so no row waits for a batch; prompts are tokenised and completions
detokenised in batches, in threads, because per-request work on the event loop is what keeps a fast engine
waiting.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.diagnosis import start_failure
from airflow_provider_raybatch.job.engine.base import (
    Completion,
    EngineDeadError,
    EngineInfo,
    Response,
    overlong,
)
from airflow_provider_raybatch.job.engine.chat import ChatEncoder
from airflow_provider_raybatch.job.engine.own_log import OwnLog
from airflow_provider_raybatch.job.engine.vllm_args import engine_args, sampling_params
from airflow_provider_raybatch.job.request import Request, RowFailure

_NEEDS_TEXT = ("stop", "bad_words")


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    params: Any


@dataclass(frozen=True)
class _Raw:
    output: Any
    detokenized: bool
    skip_special_tokens: bool


class VllmEngine:
    """One vLLM engine, over as many GPUs as tensor and pipeline parallel ask for."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        import vllm
        from vllm import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        log = OwnLog()
        args = AsyncEngineArgs(**engine_args(spec))
        try:
            # Under other contexts vLLM sizes its scheduler for a server: 128 sequences where LLM() takes 1024
            # on one H200.
            self._llm = AsyncLLM.from_engine_args(args, usage_context=UsageContext.LLM_CLASS)
        except Exception as error:
            raise start_failure(log.root_cause() or f"{type(error).__name__}: {error}") from error
        config = self._llm.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._defaults = {**config.model_config.get_diff_sampling_param(), **spec.sampling}
        tokenizer = self._llm.get_tokenizer()
        self._chat = ChatEncoder(tokenizer, spec.model.chat_template, spec.model.chat_template_kwargs)
        self._tokenizer = tokenizer
        self._numbers = itertools.count()
        self._shared_params: Any = None
        self.info = EngineInfo(
            effective_sampling=self._defaults,
            sizes={
                "max_model_len": self._max_model_len,
                "max_num_seqs": int(config.scheduler_config.max_num_seqs),
                "max_num_batched_tokens": int(config.scheduler_config.max_num_batched_tokens),
                "kv_cache_tokens": int(
                    (config.cache_config.num_gpu_blocks or 0) * (config.cache_config.block_size or 0)
                ),
            },
            versions={"vllm": vllm.__version__},
        )

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        encoded: list[Any] = []
        for request, ids in zip(requests, self._chat.encode(requests), strict=True):
            if isinstance(ids, RowFailure):
                encoded.append(ids)
                continue
            if len(ids) >= self._max_model_len:
                encoded.append(RowFailure("tokenize", overlong(len(ids), self._max_model_len)))
                continue
            try:
                encoded.append(_Encoded(ids, self._params(request.sampling, self._max_model_len - len(ids))))
            except (ValueError, RaybatchError) as error:  # parameters of this row alone
                encoded.append(RowFailure.of("engine", error))
        return encoded

    def _params(self, overrides: Mapping[str, Any], room: int) -> Any:
        """VLLM's parameters of one request.

        As in vLLM's server, `max_tokens` is what the context leaves unless set.
        """
        if not overrides and self._shared_params is not None:
            params = copy.copy(self._shared_params)
        else:
            from vllm.sampling_params import RequestOutputKind

            merged = {**self._defaults, **overrides}
            merged.setdefault("max_tokens", None)
            params = sampling_params(merged)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            # Stop strings are found in text, so those requests are detokenised by vLLM as they go.
            params.detokenize = any(merged.get(name) for name in _NEEDS_TEXT)
            # Each request has its own already; vLLM would make a deep copy of it.
            params.skip_clone = True
            if not overrides:
                self._shared_params = copy.copy(params)
        if params.max_tokens is None or params.max_tokens > room:
            params.max_tokens = room
            params.min_tokens = min(params.min_tokens, room)
        return params

    async def generate(self, encoded: Any) -> Any:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDead

        final = None
        try:
            async for output in self._llm.generate(
                tokens_input(encoded.ids), encoded.params, str(next(self._numbers))
            ):
                final = output
        except VllmDead as error:
            raise EngineDeadError(f"vLLM's engine process died ({error}).") from error
        except Exception as error:
            if self._llm.errored:
                raise EngineDeadError(f"vLLM's engine process died ({error}).") from error
            return RowFailure.of("engine", error)
        if final is None or not final.finished:
            return RowFailure("engine", "vLLM ended the request without a result")
        return _Raw(final, bool(encoded.params.detokenize), bool(encoded.params.skip_special_tokens))

    def tokens(self, raw: Any) -> tuple[int, int]:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        output = raw.output
        return len(output.prompt_token_ids or ()), sum(len(one.token_ids) for one in output.outputs)

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        texts: dict[tuple[int, int], str] = {}
        for skip in (True, False):
            wanted = [
                ((row, number), list(completion.token_ids))
                for row, item in enumerate(raw)
                if not item.detokenized and item.skip_special_tokens is skip
                for number, completion in enumerate(item.output.outputs)
            ]
            if wanted:
                decoded = self._tokenizer.batch_decode([ids for _, ids in wanted], skip_special_tokens=skip)
                texts.update(zip((place for place, _ in wanted), decoded, strict=True))
        return [
            Response(
                completions=tuple(
                    Completion(
                        text=completion.text if item.detokenized else texts[row, number],
                        finish_reason=str(completion.finish_reason or "unknown"),
                        output_tokens=len(completion.token_ids),
                    )
                    for number, completion in enumerate(item.output.outputs)
                ),
                input_tokens=len(item.output.prompt_token_ids or ()),
                cached_tokens=int(item.output.num_cached_tokens or 0),
            )
            for row, item in enumerate(raw)
        ]

    def shutdown(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()
