# SPDX-License-Identifier: Apache-2.0
"""`BatchesSweepOperator`: deletes what has expired in the Batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.exceptions import for_airflow

if TYPE_CHECKING:
    from airflow.sdk import Context


class BatchesSweepOperator(BaseOperator):
    """Deletes files whose time is over, with what came of them.

    Returns what :func:`~airflow_provider_raybatch.batches.sweep.sweep` does, how many of each kind. It fails
    where the storage does not answer, and a retry goes on.
    """

    ui_color: str = "#e6f2fb"

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete what has expired by now."""
        from airflow_provider_raybatch.batches.settings import required_settings
        from airflow_provider_raybatch.batches.store import batch_store
        from airflow_provider_raybatch.batches.sweep import sweep

        with for_airflow():
            swept = sweep(batch_store(required_settings()))
        self.log.info("Deleted: %s.", ", ".join(f"{count:,} {what}" for what, count in swept.items()))
        return swept
