# SPDX-License-Identifier: Apache-2.0
"""An engine for which each prompt says what happens to it, in replicas without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine


class ProcessEndedError(asyncio.CancelledError):
    """Stands for the end of the replica's process."""


class Scripted(EchoEngine):
    """An echo, but for prompts that start with `wait`, or end with `die`.

    :cvar asked: all prompts so far.
    :cvar events: for which those wait, by prompt.
    """

    asked: ClassVar[list[str]] = []
    events: ClassVar[dict[str, asyncio.Event]] = {}

    async def generate(self, encoded: Any) -> Any:
        self.asked.append(encoded.prompt)
        if encoded.prompt.startswith("wait"):
            await self.events.setdefault(encoded.prompt, asyncio.Event()).wait()
        if encoded.prompt.endswith("die"):
            raise EngineDeadError("vLLM's engine process died.", killed=False)
        return await super().generate(encoded)
