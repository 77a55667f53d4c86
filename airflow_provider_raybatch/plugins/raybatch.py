# SPDX-License-Identifier: Apache-2.0
"""`RayBatchPlugin`: pages and links in Airflow's UI. Each Airflow process imports this module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_raybatch.links.report import PREFIX, DatasetLink, FailedRowsLink, ReportLink

_log = logging.getLogger(__name__)

BATCH_API_PREFIX = f"{PREFIX}/v1"

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
_BATCHES: dict[str, Any] = {
    "name": "Batches",
    "href": f"{_BELOW}/batches",
    "destination": "nav",
    "category": "browse",
    "url_route": "raybatch_batches",
}
_LINKS: list[Any] = [ReportLink(), FailedRowsLink(), DatasetLink()]


def _views() -> list[Any]:
    has_batch_api = bool(conf.get("raybatch", "batch_api_root", fallback=""))
    return [*_VIEWS, _BATCHES] if has_batch_api else _VIEWS


class RayBatchPlugin(AirflowPlugin):
    """Reports of batch inferences in Airflow's UI."""

    name = "raybatch"
    external_views = _views()
    operator_extra_links = _LINKS

    # Only the API server asks for it, and `airflow plugins`; workers and schedulers never build the apps.
    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The apps of the Batch API and of the pages, without one that can't be built; the log says why."""
        # Airflow mounts them in this order, and the first prefix that fits gets the request.
        return [*_mounted("Batch API", BATCH_API_PREFIX, _batch_app), *_mounted("reports", PREFIX, _pages)]


def _mounted(what: str, prefix: str, make: Callable[[], Any]) -> list[Any]:
    try:
        app = make()
    except Exception as error:  # an Airflow without it is better than none
        _log.warning("Airflow serves no Ray Batch %s: %s: %s", what, type(error).__name__, error)
        return []
    return [] if app is None else [{"app": app, "url_prefix": prefix, "name": f"Ray Batch {what}"}]


def _batch_app() -> Any:
    from airflow_provider_raybatch.plugins.batch_api.app import make_batch_app

    return make_batch_app()


def _pages() -> Any:
    from airflow_provider_raybatch.plugins.app import make_app

    return make_app()
