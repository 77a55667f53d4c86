# SPDX-License-Identifier: Apache-2.0
"""Ask Airflow for the last nights of a task: one request for all, and one for what each night returned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_raybatch.plugins import airflow_api
from airflow_provider_raybatch.plugins.nights import (
    MOST_INSTANCES,
    Night,
    instance_of,
    nights_of,
    numbers_of,
)

if TYPE_CHECKING:
    from fastapi import Request


async def last_nights(request: Request, dag_id: str, task_id: str) -> list[Night]:
    """The nights, newest first.

    :raises HTTPException: the caller may not see them.
    """
    found = await airflow_api.last_instances(request, dag_id, task_id, MOST_INSTANCES)
    usable = [one for one in map(instance_of, found) if one is not None]
    cut = len(found) >= MOST_INSTANCES
    shown = [one for night in nights_of(usable, cut) for one in night.instances]
    # An instance that has not succeeded has no result of this run.
    asked = [one.ti for one in shown if one.state == "success"]
    numbers = dict(zip(asked, map(numbers_of, await airflow_api.results(request, asked)), strict=True))
    return nights_of([replace(one, numbers=numbers.get(one.ti, one.numbers)) for one in shown])
