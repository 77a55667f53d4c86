# SPDX-License-Identifier: Apache-2.0
"""The trigger of a batch inference, which strikes its triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from aimed_strike import strike
from airflow.triggers.base import TriggerEvent

from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger


class AimedTrigger(RayJobTrigger):
    """Strikes before and after it fires.

    :param aims: see :func:`aimed_strike.strike`.
    """

    def __init__(self, *, aims: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.aims = dict(aims)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("aimed_trigger.AimedTrigger", {**super().serialize()[1], "aims": self.aims})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for event in super().run():
            strike(self.aims, "before_yield")
            yield event
            strike(self.aims, "after_yield")
