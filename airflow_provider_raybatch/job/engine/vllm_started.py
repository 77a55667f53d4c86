# SPDX-License-Identifier: Apache-2.0
"""What is the same for each of vLLM's engines: how it starts, ends, and waits for the result of a request."""

from __future__ import annotations

import itertools
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import EngineDeadError, EngineInfo
from airflow_provider_raybatch.job.engine.vllm_args import engine_args
from airflow_provider_raybatch.job.failures.diagnosis import reason_of, start_failure
from airflow_provider_raybatch.job.row import RowFailure

_TRIES, _PAUSE = 3, 5.0
"""Of an engine that shares its GPU, and seconds between two."""
_OF_NEIGHBOURS = ("Error in memory profiling", "Free memory on device")
"""Of vLLM, where another engine on the GPU ended while this one measured, or has not freed its memory yet:
its processes may outlive its actor for a moment."""
_ERROR = re.compile(r"\b((?:[A-Za-z_][\w.]*)?(?:Error|Exception)): (.+)$")
_GENERIC = ("initialization failed", "See root cause above", "See stack trace for root cause")
_MOST_BYTES = 2_000_000


class StartedVllm(ABC):
    """An async engine of vLLM's.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group.
    """

    info: EngineInfo

    def __init__(self, spec: BatchInferenceSpec, spans_nodes: bool = False) -> None:
        self._llm = _started(engine_args(spec, spans_nodes), _TRIES if spec.shares_gpu else 1)
        self._numbers = itertools.count()
        self._serve(spec)

    @abstractmethod
    def _serve(self, spec: BatchInferenceSpec) -> None:
        """Take requests of this spec."""

    def renewed(self, spec: BatchInferenceSpec) -> Any:
        self._serve(spec)
        return self

    @property
    def is_dead(self) -> bool:
        """See :class:`~airflow_provider_raybatch.job.engine.base.Renewable`, also for those below."""
        return bool(self._llm.errored)

    async def ping(self) -> None:
        await self._llm.is_sleeping()  # vLLM's engine process answers between two steps

    async def prepare(self) -> None:
        return  # the model is all that most requests need

    def tokens_in_flight(self) -> int:
        return vllm_compat.tokens_in_flight(self._llm)

    def close(self) -> None:
        vllm_compat.stop_engine(self._llm)

    async def _last(self, outputs: AsyncIterator[Any]) -> Any | RowFailure:
        """The final output of one request.

        :raises EngineDeadError: the engine has ended.
        """
        final = None
        try:
            async for output in outputs:
                final = output
        except Exception as error:
            if self._llm.errored or isinstance(error, vllm_compat.engine_dead_error()):
                killed = vllm_compat.was_killed(self._llm)
                raise EngineDeadError(f"vLLM's engine process died ({error}).", killed) from error
            return RowFailure.of("engine", error)
        if final is None or not final.finished:
            return RowFailure("engine", "vLLM ended the request without a result")
        return final


def sizes_of(config: Any) -> dict[str, Any]:
    """What a report shows of any engine of this config, vLLM's own."""
    model, scheduler = config.model_config, config.scheduler_config
    return {
        "max_model_len": int(model.max_model_len),
        "max_num_seqs": int(scheduler.max_num_seqs),
        "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
        "enforce_eager": bool(model.enforce_eager),
    }


def _started(args: Mapping[str, Any], tries: int) -> Any:
    """VLLM's engine.

    :raises RaybatchError: it did not start, at the last of so many tries if memory of its neighbours changed.
    """
    for left in reversed(range(tries)):
        log = OwnLog()
        try:
            return vllm_compat.start_engine(args)
        except Exception as error:
            cause = log.root_cause() or f"{type(error).__name__}: {reason_of(error)}"
            if not left or not any(mark in cause for mark in _OF_NEIGHBOURS):
                raise start_failure(cause) from error
        print(f"num_gpus: the engine starts once more ({cause}).", file=sys.stderr, flush=True)
        time.sleep(_PAUSE)
    raise AssertionError("unreachable")


class OwnLog:
    """Remembers where stdout and stderr stood, to find what this process's children wrote since.

    Errors in vLLM's own processes reach the parent only as "see root cause above". In a Ray worker, "above"
    is a log file on the node.
    """

    def __init__(self) -> None:
        self._starts = {path: path.stat().st_size for path in _files()}

    def root_cause(self) -> str | None:
        """The first error written since, as ``Class: text``; ``None`` without one or without a log file."""
        for path, start in self._starts.items():
            with path.open("rb") as file:
                file.seek(start)
                text = file.read(_MOST_BYTES).decode(errors="replace")
            for line in text.splitlines():
                found = _ERROR.search(line)
                if found and not any(mark in line for mark in _GENERIC):
                    return f"{found.group(1)}: {found.group(2)}"
        return None


def _files() -> list[Path]:
    paths = []
    for descriptor in (1, 2):
        try:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
        except OSError:
            continue
        if path.is_file() and path not in paths:
            paths.append(path)
    return paths
