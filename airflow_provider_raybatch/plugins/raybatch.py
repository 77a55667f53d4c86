# SPDX-License-Identifier: Apache-2.0
"""`RayBatchPlugin`: pages and links in Airflow's UI. Each Airflow process imports this module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_raybatch.links.report import PREFIX, DatasetLink, FailedRowsLink, ReportLink

_log = logging.getLogger(__name__)

_DOORS = ("airflow_provider_raybatch.batch_api",)
"""Folders whose module `plugin` adds views, apps and routers, so that nothing here names what they do."""

# The UI resolves these against the API server's base url, which may have a path of its own.
_BELOW = PREFIX.lstrip("/")

_VIEWS: list[Any] = [
    {
        "name": "Batch report",
        "href": f"{_BELOW}/dags/{{DAG_ID}}/runs/{{RUN_ID}}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
        "destination": "task_instance",
        "url_route": "raybatch_report",
    },
    {
        "name": "Batch nights",
        "href": f"{_BELOW}/dags/{{DAG_ID}}/tasks/{{TASK_ID}}",
        "destination": "task",
        "url_route": "raybatch_nights",
    },
]
_LINKS: list[Any] = [ReportLink(), FailedRowsLink(), DatasetLink()]


def _doors() -> list[Any]:
    return [import_module(f"{name}.plugin") for name in _DOORS if find_spec(name) is not None]


def _views() -> list[Any]:
    return [*_VIEWS, *(view for door in _doors() for view in door.views())]


class RayBatchPlugin(AirflowPlugin):
    """Reports of batch inferences in Airflow's UI."""

    name = "raybatch"
    external_views = _views()
    operator_extra_links = _LINKS

    # Only the API server asks for it, and `airflow plugins`; workers and schedulers never build the apps.
    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The apps of the doors and of the pages, without one that can't be built; the log says why."""
        # Airflow mounts them in this order, and the first prefix that fits gets the request.
        apps = [app for door in _doors() for app in door.apps()]
        return [mounted for app in [*apps, ("reports", PREFIX, _pages)] for mounted in _mounted(*app)]


def _mounted(what: str, prefix: str, make: Callable[[], Any]) -> list[Any]:
    try:
        app = make()
    except Exception as error:  # an Airflow without it is better than none
        _log.warning("Airflow serves no Ray Batch %s: %s: %s", what, type(error).__name__, error)
        return []
    return [] if app is None else [{"app": app, "url_prefix": prefix, "name": f"Ray Batch {what}"}]


def _pages() -> Any:
    from airflow_provider_raybatch.plugins.app import make_app

    return make_app([router for door in _doors() for router in door.routers()])
