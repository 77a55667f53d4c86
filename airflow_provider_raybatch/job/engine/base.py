# SPDX-License-Identifier: Apache-2.0
"""The interface of an engine, one in each replica's process; and requests asked together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine.request_values import whole_number
from airflow_provider_raybatch.job.row import Request, Response, RowFailure


@dataclass(frozen=True)
class EngineInfo:
    """A running engine. `effective_sampling` are the parameters of a request that sets none."""

    effective_sampling: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class EngineDeadError(RaybatchError):
    """The engine has ended; only a new process helps.

    :param killed: whether its process ended by SIGKILL, which comes from a user or a system without memory.
    """

    failure_class = FailureClass.ENGINE_DEAD

    def __init__(self, message: str, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class Engine(Protocol):
    """Makes responses: it generates, or pools where the spec's task is one of a pooling model.

    `encode` and `decode` take batches, and run in threads beside the event loop; `generate` takes one
    request, and many overlap.
    """

    info: EngineInfo

    async def prepare(self) -> None:
        """Load what the job's requests need besides the model. Called before the first of them.

        :raises RaybatchError: it can't be loaded.
        """

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """Apply the chat template and tokenise: what `generate` takes, or a :class:`RowFailure`.

        A request with images is not complete: :meth:`attach` adds them.
        """

    def attach(self, encoded: Any, pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
        """Give a request its images: what `generate` takes, or why the model can't take them.

        Called in a thread, shortly before `generate`, since images take much memory.

        :param encoded: of `encode`; it is used up.
        :param pixels: of each image of the request, in order: height x width x 3, RGB.
        :returns: a :class:`RowFailure` where it fails.
        """

    async def generate(self, encoded: Any) -> Any:
        """Make the response to one request: what `decode` takes, or a :class:`RowFailure`.

        :raises EngineDeadError: the engine has ended.
        """

    def tokens(self, raw: Any) -> tuple[int, int]:
        """Prompt tokens and generated tokens of a result of `generate`."""

    def tokens_in_flight(self) -> int:
        """Tokens generated so far for unfinished requests: the progress of long responses.

        Called about once a second, from a thread of its own.
        """

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        """Turn token ids into text; what a pooling model gives needs none of this."""

    def close(self) -> None:
        """End its processes and free its GPUs."""


class Renewable(Engine, Protocol):
    """An engine that can serve one job after another."""

    @property
    def is_dead(self) -> bool:
        """Whether its processes have ended. Called while it is idle."""

    async def ping(self) -> None:
        """Wait until the idle engine answers a ping, so it is not hung.

        :raises Exception: it has ended.
        """

    def renewed(self, spec: BatchInferenceSpec) -> Renewable:
        """The same engine for another spec that asks for an equal one; this object is not used any more."""


def overlong(tokens: int, longest: int) -> RowFailure:
    """The failure of a row whose prompt leaves no room for a single generated token."""
    has = f"the prompt has {count_of(tokens, 'token')} and max_model_len is {longest:,}"
    return RowFailure("tokenize", f"{has}, which leaves no room for a response")


def too_long(tokens: int, longest: int, what: str = "text") -> RowFailure:
    """The failure of a row whose text a pooling model can't take whole."""
    has = f"the {what} has {count_of(tokens, 'token')} and the model takes {longest:,}"
    return RowFailure("tokenize", f"{has}; cut it with on_overlong='truncate', or split it before")


def most_prompt_tokens(context: int, max_tokens: Any) -> int:
    """Tokens to which a prompt is cut: room is left for `max_tokens`, at most half of the context.

    :param max_tokens: of the request; without a number, an eighth of the context is left.
    """
    most = whole_number(max_tokens)
    wanted = min(most, context // 2) if isinstance(most, int) else context // 8
    return context - max(1, wanted)


def with_response(tokens: int, max_tokens: Any, context: int) -> int:
    """Tokens that a prompt and its response take; 0 if the context does not hold the prompt."""
    most = whole_number(max_tokens)
    return 0 if tokens >= context else min(context, tokens + (most if isinstance(most, int) else 1))


@dataclass(frozen=True)
class _Together:
    """What the engine takes, or has made, of requests that are asked together."""

    members: list[Any]


class TogetherEngine:
    """Any engine; a request with `each` becomes the requests that it has, and their responses one.

    See :class:`~airflow_provider_raybatch.job.engine.base.Engine` for the methods. A group fails with the
    first of its requests that fails.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.info = engine.info

    async def prepare(self) -> None:
        await self._engine.prepare()

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        flat = iter(self._engine.encode([*chain(*((one.each or (one,)) for one in requests))]))
        made: list[Any] = []
        for one in requests:
            members = [next(flat) for _ in one.each or (one,)]
            made.append(_whole(members) if one.each else members[0])
        return made

    def attach(self, encoded: Any, pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
        return self._engine.attach(encoded, pixels)

    async def generate(self, encoded: Any) -> Any:
        if not isinstance(encoded, _Together):
            return await self._engine.generate(encoded)
        return _whole(await asyncio.gather(*map(self._engine.generate, encoded.members)))

    def tokens(self, raw: Any) -> tuple[int, int]:
        if not isinstance(raw, _Together):
            return self._engine.tokens(raw)
        asked, answered = zip(*map(self._engine.tokens, raw.members), strict=True)
        return sum(asked), sum(answered)

    def tokens_in_flight(self) -> int:
        return self._engine.tokens_in_flight()

    def decode(self, raw: Sequence[Any]) -> list[Response]:
        groups = [one.members if isinstance(one, _Together) else [one] for one in raw]
        flat = iter(self._engine.decode([*chain(*groups)]))
        decoded = [[next(flat) for _ in group] for group in groups]
        return [
            _joined(group) if isinstance(one, _Together) else group[0]
            for one, group in zip(raw, decoded, strict=True)
        ]

    def close(self) -> None:
        self._engine.close()


def _whole(members: Sequence[Any]) -> _Together | RowFailure:
    failed = (one for one in members if isinstance(one, RowFailure))
    return next(failed, None) or _Together(list(members))


def _joined(responses: Sequence[Response]) -> Response:
    """One response with the completions of all."""
    return replace(
        responses[0],
        completions=tuple(chain(*(one.completions for one in responses))),
        input_tokens=sum(one.input_tokens for one in responses),
        cached_tokens=sum(one.cached_tokens for one in responses),
        truncated_prompt_tokens=sum(one.truncated_prompt_tokens for one in responses),
        has_special_tokens=any(one.has_special_tokens for one in responses),
    )
