# SPDX-License-Identifier: Apache-2.0
"""The interface of an engine. Each replica's process has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine.sampling_values import whole_number
from airflow_provider_raybatch.job.row import Request, Response, RowFailure


@dataclass(frozen=True)
class EngineInfo:
    """Description of a running engine.

    :param effective_sampling: parameters of a request that sets none of its own.
    """

    effective_sampling: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class EngineDeadError(RaybatchError):
    """The engine is gone for good; only a new process helps.

    :param killed: whether its process ended by SIGKILL, which no engine does to itself: a user, or the system
        that ran out of memory.
    """

    failure_class = FailureClass.ENGINE_DEAD

    def __init__(self, message: str, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class Engine(Protocol):
    """Generates responses.

    `encode` and `decode` are plain functions on batches, run in threads beside the event loop; `generate` is
    one request, and many of them overlap.
    """

    info: EngineInfo

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """Apply the chat template and tokenise.

        An item is whatever `generate` takes, or a :class:`RowFailure`.
        """

    async def generate(self, encoded: Any) -> Any:
        """Generate the response to one request: whatever `decode` takes, or a :class:`RowFailure`.

        :raises EngineDeadError: for good.
        """

    def tokens(self, raw: Any) -> tuple[int, int]:
        """Prompt tokens and generated tokens of a result of `generate`."""

    def tokens_in_flight(self) -> int:
        """Tokens generated so far for unfinished requests, so that a long response shows progress.

        Asked about once a second, from a thread of its own.
        """

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        """Turn token ids into text."""

    def close(self) -> None:
        """End its processes and free its GPUs. It answers nothing any more."""


class Renewable(Engine, Protocol):
    """An engine that can go from job to job."""

    @property
    def is_dead(self) -> bool:
        """Whether its processes have ended. Asked while it generates nothing."""

    async def ping(self) -> None:
        """Return when what generates has answered a call, and so does not hang. It has no requests then.

        :raises Exception: it has ended.
        """

    def renewed(self, spec: BatchInferenceSpec) -> Renewable:
        """The same engine for another spec, which asks for an equal one. This object is not used any more."""


def overlong(tokens: int, longest: int) -> RowFailure:
    """The failure of a row whose prompt leaves no room for a single generated token."""
    return RowFailure(
        "tokenize",
        f"the prompt has {count_of(tokens, 'token')} and the context holds {longest:,}, which leaves no room "
        "for a response",
    )


def most_prompt_tokens(context: int, max_tokens: Any) -> int:
    """Tokens of a prompt that is cut: it leaves room for `max_tokens`, within bounds.

    :param max_tokens: of the request; the engine refuses what is not a number.
    """
    most = whole_number(max_tokens)
    wanted = min(most, context // 2) if isinstance(most, int) else context // 8
    return context - max(1, wanted)
