# SPDX-License-Identifier: Apache-2.0
"""What tests of an engine in a process of its own ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec

PROMPTS = ["one two", "of this length are too long for it", "bad", "three"]
HANGS = {"hang_pattern": "forever", "seconds_per_token": 0.001}
"""Options of an echo that never answers a request with this word."""


def asking(**options: Any) -> BatchInferenceSpec:
    return spec(engine="echo", engine_args=options)


def answers(engine: Engine, prompts: Sequence[str] = PROMPTS) -> list[Any]:
    """What becomes of prompts, with the tokens of each."""

    async def generated(encoded: Any) -> Any:
        return encoded if isinstance(encoded, RowFailure) else await engine.generate(encoded)

    async def ask() -> list[Any]:
        encoded = engine.encode([Request(prompt=prompt) for prompt in prompts])
        return list(await asyncio.gather(*map(generated, encoded)))

    raw = asyncio.run(ask())
    found = [one for one in raw if not isinstance(one, RowFailure)]
    decoded = [(one, engine.tokens(made)) for one, made in zip(engine.decode(found), found, strict=True)]
    return [one if isinstance(one, RowFailure) else decoded.pop(0) for one in raw]
