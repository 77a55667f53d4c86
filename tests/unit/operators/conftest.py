# SPDX-License-Identifier: Apache-2.0
"""A fake Jobs API, and a task in a real Airflow."""

from __future__ import annotations

from tests.support.airflow_tasks import airflow_db, clock, dag_test, installation, ray, run  # noqa: F401 - fixtures
