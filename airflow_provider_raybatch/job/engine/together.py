# SPDX-License-Identifier: Apache-2.0
"""An engine that takes requests that are asked together as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.row import Request, Response, RowFailure


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
