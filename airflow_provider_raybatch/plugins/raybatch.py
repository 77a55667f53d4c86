# SPDX-License-Identifier: Apache-2.0
"""`RayBatchPlugin`: pages and links in Airflow's UI. Each Airflow process imports this module."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.sdk.configuration import conf
from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_provider_raybatch.links.report import PREFIX, DatasetLink, FailedRowsLink, ReportLink

_log = logging.getLogger(__name__)

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

    # Only the API server asks for it, and `airflow plugins`; workers and schedulers never build the app.
    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The app that serves the pages, or none where it can't be built; the log says why."""
        try:
            from airflow_provider_raybatch.plugins.app import make_app

            return [{"app": make_app(), "url_prefix": PREFIX, "name": "Ray Batch reports"}]
        except Exception as error:  # an Airflow without reports is better than none
            _log.warning("Airflow shows no reports of batch inferences: %s: %s", type(error).__name__, error)
            return []
