# SPDX-License-Identifier: Apache-2.0
"""Links from a task in Airflow's UI to the pages of its report, which the plugin serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PREFIX = "/raybatch"
"""Of the plugin's paths below the API server's ``[api] base_url``."""

_PACKAGE = "airflow_provider_raybatch"
_OPERATORS = (
    ("operators.ray_batch", "RayBatchInferenceOperator"),
    ("batch_api.dags.operators", "ServedBatchOperator"),
    ("decorators.ray_batch", "RayBatchDecoratedOperator"),
)


def report_path(dag_id: str, run_id: str, task_id: str, map_index: int = -1, page: str = "") -> str:
    """Where the plugin shows the report of a task instance, below its :data:`PREFIX`.

    :param page: ``failed`` or ``dataset``; empty for the whole report.
    """
    parts = ("dags", dag_id, "runs", run_id, "tasks", task_id, str(map_index), page)
    return "/" + "/".join(quote(part, safe="") for part in parts if part)


def task_path(dag_id: str, task_id: str) -> str:
    """Where the plugin shows the last nights of a task, below its :data:`PREFIX`."""
    return f"/dags/{quote(dag_id, safe='')}/tasks/{quote(task_id, safe='')}"


def base_path() -> str:
    """The path of ``[api] base_url``, without a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def _named(module: str, name: str) -> type[Any]:
    return type(name, (), {"__module__": f"{_PACKAGE}.{module}"})


class _ReportLink(BaseOperatorLink):
    """A page of the report.

    The plugin registers it, so the API server itself makes the url, of ids alone: the link is there before
    the task has run, needs no XCom, and is missing where the plugin is.
    """

    # Airflow compares names and modules; the classes themselves would load operators into the API server.
    operators: ClassVar[list[Any]] = [_named(*operator) for operator in _OPERATORS]
    page: ClassVar[str] = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The url of the page on this Airflow."""
        path = report_path(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index, self.page)
        return f"{base_path()}{PREFIX}{path}"


class ReportLink(_ReportLink):
    """The report of the task's run."""

    @property
    def name(self) -> str:
        """The button's text."""
        return "Report"


class FailedRowsLink(_ReportLink):
    """Which rows failed, why, and where they are."""

    page = "failed"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Failed rows"


class DatasetLink(_ReportLink):
    """Columns and files of the dataset, and how to open it."""

    page = "dataset"

    @property
    def name(self) -> str:
        """The button's text."""
        return "Dataset"
