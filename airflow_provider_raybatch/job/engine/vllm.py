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

from airflow_provider_raybatch.contract.arguments.engine import check_reasoning
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import EngineDeadError, EngineInfo, overlong
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, template_of
from airflow_provider_raybatch.job.engine.detokenize import Detokenizer, Generated
from airflow_provider_raybatch.job.engine.own_log import OwnLog
from airflow_provider_raybatch.job.engine.vllm_args import engine_args, sampling_params
from airflow_provider_raybatch.job.failures.diagnosis import start_failure
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    params: Any


@dataclass(frozen=True)
class _Raw:
    output: Any
    detokenized: bool


class VllmEngine:
    """One vLLM engine, over as many GPUs as tensor and pipeline parallel ask for."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        import vllm

        log = OwnLog()
        args = engine_args(spec)
        try:
            self._llm = vllm_compat.start_engine(args)
        except Exception as error:
            raise start_failure(log.root_cause() or f"{type(error).__name__}: {error}") from error
        config = self._llm.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._defaults = {**vllm_compat.sampling_defaults(config.model_config), **spec.sampling}
        self._reasoning_parser = spec.reasoning_parser
        renderer = vllm_compat.renderer_of(self._llm)
        tokenizer = self._llm.get_tokenizer()
        template = template_of(spec, tokenizer)
        render = vllm_compat.chat_renderer(renderer, template, spec.chat_template_kwargs)
        self._chat = ChatEncoder(tokenizer, render)
        self._detokenizer = Detokenizer(tokenizer)
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
            merged = {**self._defaults, **overrides}
            merged.setdefault("max_tokens", None)
            if merged.get("structured_outputs"):
                check_reasoning(self._reasoning_parser)
            params = sampling_params(merged)
            params.detokenize = self._detokenizer.leaves_to_vllm(merged)
            vllm_compat.final_output_only(params)
            vllm_compat.without_copy(params)  # each request has its own already
            if not overrides:
                self._shared_params = copy.copy(params)
        if params.max_tokens is None or params.max_tokens > room:
            params.max_tokens = room
            params.min_tokens = min(params.min_tokens, room)
        return params

    async def generate(self, encoded: Any) -> Any:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        final = None
        try:
            async for output in self._llm.generate(
                vllm_compat.as_tokens(encoded.ids), encoded.params, str(next(self._numbers))
            ):
                final = output
        except Exception as error:
            if self._llm.errored or isinstance(error, vllm_compat.engine_dead_error()):
                killed = vllm_compat.was_killed(self._llm)
                raise EngineDeadError(f"vLLM's engine process died ({error}).", killed) from error
            return RowFailure.of("engine", error)
        if final is None or not final.finished:
            return RowFailure("engine", "vLLM ended the request without a result")
        return _Raw(final, bool(encoded.params.detokenize))

    def tokens(self, raw: Any) -> tuple[int, int]:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        output = raw.output
        return len(output.prompt_token_ids or ()), sum(len(one.token_ids) for one in output.outputs)

    def tokens_in_flight(self) -> int:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        return vllm_compat.tokens_in_flight(self._llm)

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`."""
        plain = {
            (row, number): Generated(
                item.output.prompt_token_ids or (), completion.token_ids, completion.finish_reason
            )
            for row, item in enumerate(raw)
            if not item.detokenized
            for number, completion in enumerate(item.output.outputs)
        }
        texts = dict(zip(plain, self._detokenizer.decode(list(plain.values())), strict=True))
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
