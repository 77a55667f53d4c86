# SPDX-License-Identifier: Apache-2.0
"""What the Batch API adds to this package's plugin. Each Airflow process imports this module: it is light."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.links.report import PREFIX

_BATCHES: dict[str, Any] = {
    "name": "Batches",
    "href": f"{PREFIX.lstrip('/')}/batches",
    "destination": "nav",
    "category": "browse",
    "url_route": "raybatch_batches",
}


def views() -> list[Any]:
    """A link in Airflow's menu, where there is a Batch API."""
    return [_BATCHES] if conf.get("raybatch", "batch_api_root", fallback="") else []


def apps() -> list[tuple[str, str, Callable[[], Any]]]:
    """Name, prefix and maker of its web app."""
    return [("Batch API", f"{PREFIX}/v1", _app)]


def _app() -> Any:
    from airflow_provider_raybatch.batch_api.server.app import make_batch_app

    return make_batch_app()


def routers() -> list[Any]:
    """Its pages among the plugin's."""
    from airflow_provider_raybatch.batch_api.pages import router

    return [router]
