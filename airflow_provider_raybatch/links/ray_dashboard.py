# SPDX-License-Identifier: Apache-2.0
"""`RayDashboardLink`: from a task in Airflow's UI to its job's page in the Ray dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RayDashboardLink(BaseOperatorLink):
    """The job's page in the Ray dashboard.

    Airflow's UI reads the XCom `xcom_key`, which Airflow writes only when the task leaves its worker. So
    operators call :meth:`show` as soon as the job is submitted.
    """

    @property
    def name(self) -> str:
        """The button's text."""
        return "Ray Dashboard"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The url of the job that was shown last, or an empty text."""
        known = getattr(operator, "dashboard_url", None)
        if known is not None:
            return str(known)
        from airflow.sdk.execution_time.xcom import XCom

        # A task that was deferred comes back in a new process.
        url = XCom.get_value(key=self.xcom_key, ti_key=ti_key)
        return url if isinstance(url, str) else ""

    def show(self, task_instance: Any, url: str | None) -> None:
        """Make the link point to `url` while the task runs; without one, no link is shown."""
        if url:
            task_instance.xcom_push(key=self.xcom_key, value=url)
