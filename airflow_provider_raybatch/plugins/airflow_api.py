# SPDX-License-Identifier: Apache-2.0
"""What Airflow's public API tells the caller of a page, asked in this process with the caller's own login.

So Airflow itself checks what the caller may see, and its tables may change from version to version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx
from airflow.api_fastapi.app import cached_app
from fastapi import HTTPException, Request

from airflow_provider_raybatch.links.report import base_path
from airflow_provider_raybatch.plugins.nights import MOST_INSTANCES, Night, instance_of, nights_of, numbers_of
from airflow_provider_raybatch.plugins.reading import NotShownError, TaskInstance

_LOGIN = ("authorization", "cookie")
_UNUSABLE = frozenset({"", ".", "..", "~"})
"""What a path drops, and what stands for all DAGs or runs."""
_XCOM_BYTES = 256 * 1024
NO_INSTANCE = "There is no such task instance. Of a mapped task, select one of its instances."


def check_ids(*ids: str) -> None:
    """:raises NotShownError: an id can't be one."""
    if any(one in _UNUSABLE or "/" in one for one in ids):
        raise NotShownError(NO_INSTANCE)


async def task_instance(request: Request, ti: TaskInstance) -> Mapping[str, Any]:
    """One task instance, with its rendered fields.

    :raises NotShownError: there is none.
    :raises HTTPException: the caller may not see it.
    """
    check_ids(ti.dag_id, ti.run_id, ti.task_id)
    async with _client(request) as client:
        found = await _get(client, *_path_of(ti), str(ti.map_index))
    names = {"dag_id": ti.dag_id, "dag_run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    if any(found.get(name) != value for name, value in names.items()):
        raise NotShownError(NO_INSTANCE)
    return found


async def last_nights(request: Request, dag_id: str, task_id: str) -> list[Night]:
    """The last nights of a task, newest first: one request for all, and one for what each instance returned.

    :raises HTTPException: the caller may not see them.
    """
    found = await _last_instances(request, dag_id, task_id, MOST_INSTANCES)
    usable = [one for one in map(instance_of, found) if one is not None]
    cut = len(found) >= MOST_INSTANCES
    shown = [one for night in nights_of(usable, cut) for one in night.instances]
    # An instance that has not succeeded has no result of this run.
    asked = [one.ti for one in shown if one.state == "success"]
    numbers = dict(zip(asked, map(numbers_of, await _results(request, asked)), strict=True))
    return nights_of([replace(one, numbers=numbers.get(one.ti, one.numbers)) for one in shown])


async def _last_instances(request: Request, dag_id: str, task_id: str, most: int) -> list[Mapping[str, Any]]:
    check_ids(dag_id, task_id)
    async with _client(request) as client:
        params = {"task_id": task_id, "order_by": "-run_after", "limit": most}
        found = await _get(client, "dags", dag_id, "dagRuns", "~", "taskInstances", params=params)
    listed = found.get("task_instances")
    same = {"dag_id": dag_id, "task_id": task_id}
    return [
        one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping) and all(one.get(name) == value for name, value in same.items())
    ]


async def _results(request: Request, instances: list[TaskInstance]) -> list[Any]:
    """What task instances returned; ``None`` where nothing is known."""
    async with _client(request) as client:
        return [await _result(client, ti) for ti in instances]


async def _result(client: httpx.AsyncClient, ti: TaskInstance) -> Any:
    try:
        params = {"map_index": ti.map_index}
        found = await _get(client, *_path_of(ti), "xcomEntries", "return_value", params=params)
        value = found.get("value")
        return json.loads(value) if isinstance(value, str) else value
    except (NotShownError, ValueError, RecursionError):
        return None


def _path_of(ti: TaskInstance) -> tuple[str, ...]:
    return "dags", ti.dag_id, "dagRuns", ti.run_id, "taskInstances", ti.task_id


def _client(request: Request) -> httpx.AsyncClient:
    return airflow_client({name: value for name, value in request.headers.items() if name in _LOGIN})


def airflow_client(login: Mapping[str, str]) -> httpx.AsyncClient:
    """A client of Airflow's API in this process; paths are those of :func:`api_path`.

    :param login: headers.
    """
    # The same call as that of Airflow's own server, which finds the app that serves this request.
    app = cached_app(apps=os.environ.get("AIRFLOW_API_APPS", "all"))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://airflow.internal", headers=dict(login))


def api_path(*parts: str) -> str:
    """A path of Airflow's public API."""
    return f"{base_path()}/api/v2/" + "/".join(quote(part, safe="~") for part in parts)


async def _get(
    client: httpx.AsyncClient, *path: str, params: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    answer = await client.get(api_path(*path), params=params)
    if answer.status_code in {401, 403}:
        raise HTTPException(answer.status_code, "Airflow does not show you this task instance.")
    if answer.status_code == 404:
        raise NotShownError(NO_INSTANCE)
    if answer.status_code != 200:
        raise NotShownError(f"Airflow's API answered {answer.status_code} about this task; try again.", 502)
    if "xcomEntries" in path and len(answer.content) > _XCOM_BYTES:
        raise NotShownError("The XCom is too large to be read here.")
    found = answer.json()
    return found if isinstance(found, Mapping) else {}
